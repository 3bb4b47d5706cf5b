"""Looks at the nodes that it was told of, decides, writes that down, and acts."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from rankskew.act.audit import FAILED, GONE, AuditLog, restored, take
from rankskew.act.evidence import NodeEvidence
from rankskew.act.model import Decision, Limits, Node, NodeAction, Seen
from rankskew.act.policy import decide
from rankskew.act.targets.target import Line, Target
from rankskew.client.fetch import Trouble
from rankskew.report.times import iso

# Prometheus may show an alert later than Alertmanager tells of it.
CLAIM_SECONDS: Final = 300.0
# Whoever has the token can make up nodes.
MOST_CLAIMS: Final = 10_000
# What could not be done is tried again, but not at each look.
RETRY_SECONDS: Final = 1800.0
# The version of a line, for those who read it.
VERSION: Final = 1
OF_EPISODE: Final = ("cause", "detail", "job_id", "incidents")


class Actor:
    """Acts on *targets*, which change only *for_real*; *say* takes lines for people."""

    def __init__(
        self,
        evidence: NodeEvidence,
        targets: Sequence[Target],
        limits: Limits,
        log: AuditLog,
        for_real: bool,
        say: Callable[[str], None],
    ) -> None:
        self._evidence, self._targets, self._limits = evidence, targets, limits
        self._log, self._for_real, self._say = log, for_real, say
        lines = log.lines()
        self._states = {each.name: restored(lines, each.name, for_real) for each in targets}
        self._claims: dict[str, float] = {}
        self._tried: dict[tuple[str, Node], float] = {}

    def claim(self, instances: Iterable[str], now: float) -> None:
        """Take in on which *instances* an alert is said to fire; the next look asks whether."""
        for instance in instances:
            if len(self._claims) < MOST_CLAIMS:
                self._claims.setdefault(instance, now)

    def look(self, now: float) -> None:
        """Ask Prometheus, and act; without its answer nothing is done. Raises StartError."""
        try:
            claimed = self._confirmed(now) if self._claims else set()
        except Trouble as trouble:
            self._say(f"nothing is done: {trouble}")
            return
        for target in self._targets:
            state = self._states[target.name]
            # Those that come back make room for others.
            nodes = [*sorted(state.held), *sorted((claimed | state.watched.keys()) - {*state.held})]
            for node in nodes:
                try:
                    self._look(target, node, now)
                except Trouble as trouble:
                    self._say(f"{target.name}: nothing is done with {node.instance}: {trouble}")

    def _confirmed(self, now: float) -> set[Node]:
        """Return the nodes of the claims on which Prometheus has an alert too."""
        found = {each for each in self._evidence.firing() if each.instance in self._claims}
        for instance in [each for each, at in self._claims.items() if now - at > CLAIM_SECONDS]:
            del self._claims[instance]
            if instance not in {each.instance for each in found}:
                self._say(f"leaves {instance!r}: only Alertmanager says that an alert fires on it")
        return found

    def _look(self, target: Target, node: Node, now: float) -> None:
        state = self._states[target.name]
        held, was = state.held.get(node), state.watched.get(node)
        if held and self._for_real and target.holds(held.name) is False:
            why = Decision(NodeAction.FREE, "not_ours", "somebody else has changed it")
            self._write(target, Seen(node, held.name), GONE, why, now)
            return
        seen = self._evidence.of(node, now)
        seen = replace(seen, pools={**seen.pools, **target.pools()})
        decision = decide(state, seen, self._limits, now)
        if decision.action in (NodeAction.HOLD, NodeAction.FREE):
            # By the name under which it is held, whatever it is called now.
            self._act(target, replace(seen, name=held.name) if held else seen, decision, now)
        elif was != (decision.rule if decision.action == NodeAction.WAIT else None):
            self._write(target, seen, decision.action, decision, now)

    def _act(self, target: Target, seen: Seen, decision: Decision, now: float) -> None:
        key = target.name, seen.node
        if now - self._tried.get(key, -RETRY_SECONDS) < RETRY_SECONDS:
            return
        # First on the disk: what is not written down is not done.
        line = self._write(target, seen, decision.action, decision, now)
        if not self._for_real:
            return
        is_hold = decision.action == NodeAction.HOLD
        try:
            (target.hold if is_hold else target.free)(line)
            self._tried.pop(key, None)
        except Trouble as trouble:
            self._tried[key] = now
            with suppress(Trouble):  # Half of it may be done.
                if is_hold:
                    target.free({**line, "event": str(NodeAction.FREE)})
            failed = replace(decision, rule=str(decision.action), sentence=str(trouble))
            self._write(target, seen, FAILED, failed, now, line["since"])

    def _write(
        self,
        target: Target,
        seen: Seen,
        event: str,
        why: Decision,
        now: float,
        since: float | None = None,
    ) -> Line:
        state = self._states[target.name]
        held = state.held.get(seen.node)
        line = {
            "version": VERSION,
            "time": now,
            "at": iso(now),
            "event": str(event),
            "for_real": self._for_real,
            "target": target.name,
            "cluster": seen.node.cluster,
            "instance": seen.node.instance,
            "name": seen.name,
            "rule": why.rule,
            "sentence": why.sentence,
            "since": since or (held.since if held else now),
            **{each: getattr(why.episode, each, None) for each in OF_EPISODE},
        }
        self._log.add(line)
        take(state, line)
        how = "" if self._for_real else " (dry run)"
        place = seen.name or seen.node.instance
        self._say(f"{line['at']} {target.name}: {event} {place}{how}: {why.sentence}")
        return line
