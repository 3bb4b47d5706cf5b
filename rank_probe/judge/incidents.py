"""Incidents: the ranks that are late step after step, each from its onset to its end."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from rank_probe.judge.evidence import (
    LEAVE_RATIO,
    STAGE_SHARE,
    WindowEvidence,
    by_stage,
    evidence_on,
    furthest,
    least_jump,
    renamed,
    seen_in,
)
from rank_probe.judge.verdict import MILD, NODE, PERSISTENT, Late
from rank_probe.judge.wandering import DEVIATIONS, LateSpell, strays
from rank_probe.judge.windows import (
    Mark,
    MarkHistory,
    Reduction,
    Window,
    change_point,
)
from rank_probe.wire.stages import DATA, OTHER, STAGES

# Share of a node's ranks that must be late for the node to be named.
NODE_SHARE: Final = 0.6
# A rank's cost is measured since its onset, or over the last minutes.
COST_SECONDS: Final = 300.0

# Least excess over the peers: if all ranks are within 2 % of the baseline, two can differ by 4 %.
ENTER_RATIO: Final = 0.043
# The same in a window that a single hiccup of the machine can fill.
ENTER_SHORT_RATIO, SHORT_SECONDS = 0.08, 30.0
# The same for a rank that has always been slower, until minutes have confirmed it.
ENTER_STATIC_RATIO, STATIC_SECONDS = 0.05, 300.0
MILD_RATIO, MILD_SECONDS = 0.025, 300.0

# Standard errors by which a window must be below the incident's earlier excess.
LEAVE_ERRORS: Final = 4.5
# Or by which it must be below LEAVE_RATIO: a rank that catches up slowly never falls far at once.
BACK_ERRORS: Final = 3.0
# Deviations that rule out that a node has only strayed. Nodes stray as a whole for half an hour, so
# their past has few independent stretches, and a quiet one says little.
NODE_DEVIATIONS: Final = 10.0
# A node that is late by less may have drifted: nodes drift by 1 % for half an hour, and this is
# five deviations of the difference between two. Means over hours since the onset drift less. An
# excess that began minutes ago, after as long without it, is no drift.
DRIFT_RATIO, DRIFT_SECONDS, SUDDEN_SECONDS = 0.07, 3600.0, 600.0
# A mean of this many standard errors is known to a tenth.
SURE_ERRORS: Final = 10.0
# An incident that is too young for a jump is reported after this many steps, however short.
ENOUGH_STEPS: Final = 8
# Steps that are enough to see a delay move from `other` to `data`.
RENAMED_STEPS: Final = 3


class Nodes:
    """Compares the ranks of each node, in a job of several nodes with several ranks."""

    def __init__(self, reduction: Reduction) -> None:
        self._of = reduction.nodes
        self._sizes = Counter(reduction.nodes.values())

    def shared(self, window: Window) -> dict[int, float]:
        """Return the excess ratio that NODE_SHARE of the ranks of each node reach.

        Nodes with fewer ranks that stand out are left out.
        """
        excess: dict[int, list[float]] = {}
        for seen in seen_in([window]):
            node = self._of.get(seen.standing.rank)
            if node is not None:
                excess.setdefault(node, []).append(seen.excess)
        found = {}
        for node, theirs in excess.items():
            most = max(math.ceil(NODE_SHARE * self._sizes[node]), 2)
            if len(self._sizes) > 1 and len(theirs) >= most:
                found[node] = sorted(theirs, reverse=True)[most - 1]
        return found

    def sharing(self, window: Window, late: Collection[int]) -> Iterator[WindowEvidence]:
        """Yield the ranks that share the excess of a node in *late*, if the node is still late."""
        shared = self.shared(window)
        for seen in seen_in([window]):
            node = self._of.get(seen.standing.rank, -1)
            excess = shared.get(node, 0.0)
            if node in late and excess > LEAVE_RATIO and seen.excess > excess / 2:
                yield seen

    def share(self, seen: WindowEvidence) -> bool:
        """Whether most ranks of its node are at least half as late as this one."""
        shared = self.shared(seen.window).get(self._of.get(seen.standing.rank, -1), 0.0)
        return shared > 0 and seen.excess <= 2 * shared


@dataclass(slots=True)
class Incident:
    """One rank's lateness since its *onset*; *reference* is its excess ratio before that."""

    rank: int
    group: str
    kind: str
    onset: Mark
    reference: float
    confidence: float
    stage: str = ""
    ratio: float = 0.0
    is_renamed: bool = False


class Incidents:
    """Finds late ranks, and tracks each until it has caught up with its peers."""

    def __init__(self, reduction: Reduction, history: MarkHistory) -> None:
        self._reduction = reduction
        self._history = history
        self._nodes = Nodes(reduction)
        self._incidents: dict[int, Incident] = {}
        self._over: dict[int, float] = {}

    @property
    def ranks(self) -> Collection[int]:
        """Return the ranks that are late now."""
        return self._incidents.keys()

    @property
    def steady(self) -> Collection[int]:
        """Return the ranks that are late all the time, without mild ones, which may pause too."""
        return {rank for rank, each in self._incidents.items() if each.kind != MILD}

    @property
    def onsets(self) -> Iterator[Mark]:
        """Yield the onsets of the current incidents."""
        return (each.onset for each in self._incidents.values())

    def named(
        self, windows: Sequence[Window], end: Mark, paused_at: Mapping[int, float], *, synced: bool
    ) -> list[Late]:
        """Return the late ranks, given the *windows* that end now, shortest first.

        *paused_at* is when each pausing rank did so last, which makes its mean late as well.
        """
        if synced:
            self._enter(windows, paused_at)
        self._enter_with_their_node(windows)
        self._leave(windows)
        return self._late(end)

    def _enter(self, windows: Sequence[Window], paused_at: Mapping[int, float]) -> None:
        # A longer window may still contain an incident that has ended.
        now = _lasting(windows)
        late_now = {each.standing.rank for each in seen_in([now]) if each.excess > LEAVE_RATIO}
        for seen in seen_in(windows):
            known = self._incidents.get(seen.standing.rank)
            is_named = known is not None and known.kind != MILD
            is_over = seen.window.elapsed > now.elapsed and seen.standing.rank not in late_now
            paused = seen.window.begin.at < paused_at.get(seen.standing.rank, -math.inf)
            if is_named or is_over or paused:
                continue
            incident = self._in_the_mean(seen)
            if incident is None and seen.window is windows[0]:
                incident = self._jumped(seen)
            is_new = incident is not None and (known is None or incident.kind != MILD)
            if incident is not None and is_new and not self._strays(incident, seen):
                self._incidents[incident.rank] = incident

    def _strays(self, incident: Incident, seen: WindowEvidence) -> bool:
        """Whether the rank has occasionally strayed as far, for as long, in the past."""
        begin = onset = seen.window.begin
        if not incident.reference:  # Late against its peers, not against its own past.
            onset = min(incident.onset, begin, key=attrgetter("at"))
        excess = LateSpell(incident.rank, seen.standing.excess, seen.window.steps, begin, onset)
        deviations = NODE_DEVIATIONS if self._nodes.share(seen) else DEVIATIONS
        return strays(self._reduction, self._history.marks, excess, deviations)

    def _enter_with_their_node(self, windows: Sequence[Window]) -> None:
        """Name the ranks that share a late node's excess but are not certain on their own."""
        nodes = self._reduction.nodes
        late = {nodes[each.rank]: each for each in self._incidents.values() if each.kind == NODE}
        now = _lasting(windows)
        if not late or now.elapsed < SHORT_SECONDS:
            return
        for seen in self._nodes.sharing(now, late):
            rank = seen.standing.rank
            first = late[nodes[rank]]
            is_told = rank in self._incidents and self._incidents[rank].kind != MILD
            if not is_told and now.begin.at >= first.onset.at:
                self._incidents[rank] = replace(
                    first, rank=rank, group=seen.group.name, stage="", ratio=0.0
                )

    def _in_the_mean(self, seen: WindowEvidence) -> Incident | None:
        level = seen.level_score()
        is_short = seen.window.elapsed < SHORT_SECONDS
        least = ENTER_SHORT_RATIO if is_short else ENTER_RATIO
        drifts = False
        if seen.paces:
            if level > 1 and seen.excess > least:
                incident = self._incident(seen, PERSISTENT, 0.0, level)
                drifts = self._drifts(incident, seen)
                if not drifts and not self._is_static(incident, seen):
                    return incident
            rise = seen.rise_score()
            if rise > 1 and seen.excess - seen.before > least and seen.excess > LEAVE_RATIO:
                incident = self._incident(seen, PERSISTENT, seen.before, rise)
                if not self._drifts(incident, seen):
                    return incident
        # With few peers it is unknown how much healthy ranks differ.
        is_known = seen.group.spread and seen.window.elapsed >= MILD_SECONDS
        if is_known and level > 1 and seen.excess > MILD_RATIO and (seen.is_alone or drifts):
            return self._incident(seen, MILD, 0.0, level)
        return None

    def _jumped(self, seen: WindowEvidence) -> Incident | None:
        """Return the incident of a rank that far exceeds its peers in all of the last few steps.

        A window that also contains earlier steps would take the jump itself for noise.
        """
        if not seen.paces or seen.excess < ENTER_RATIO:
            return None
        found, end = self._incident(seen, PERSISTENT, 0.0, 1.0), self._history.marks[-1]
        begin, first = found.onset, self._history.marks[0]
        least = least_jump(end.steps - begin.steps, end.at - begin.at)
        if begin.steps - first.steps < self._history.least_steps:
            return None
        window = self._reduction.window(begin, end, [found.rank], (first, begin))
        since = evidence_on(found.rank, window)
        found.confidence = since.jump_score()
        is_late = since.paces and since.excess > least and found.confidence > 1
        return found if is_late else None

    def _is_static(self, incident: Incident, seen: WindowEvidence) -> bool:
        """Whether the rank may always have been slower, by too little to be sure so soon."""
        return (
            incident.onset is self._history.marks[0]
            and seen.excess < ENTER_STATIC_RATIO
            and seen.window.elapsed < STATIC_SECONDS
        )

    def _drifts(self, incident: Incident, seen: WindowEvidence) -> bool:
        """Whether its node is late as a whole, by no more than nodes drift, and not suddenly."""
        first, end = self._history.marks[0], self._history.marks[-1]
        seconds = end.at - incident.onset.at
        is_sudden = seconds < min(SUDDEN_SECONDS, incident.onset.at - first.at)
        if is_sudden or not self._nodes.share(seen):
            return False
        shared = self._nodes.shared(self._reduction.window(incident.onset, end, ()))
        excess = shared.get(self._reduction.nodes[incident.rank], 0.0) - incident.reference
        return excess < DRIFT_RATIO / math.sqrt(1 + seconds / DRIFT_SECONDS)

    def _incident(
        self, seen: WindowEvidence, kind: str, reference: float, score: float
    ) -> Incident:
        rank, group = seen.standing.rank, seen.group
        # Its excess in an earlier incident does not count for this one.
        over = self._over.get(rank, -math.inf)
        marks = [mark for mark in self._history.marks[:-1] if mark.at >= over]
        marks = [*(marks or self._history.marks[-2:-1]), self._history.marks[-1]]
        # `now - own` is a usual rank's distance from the baseline: not 0, because steps are noisy.
        path = self._reduction.path(rank, marks)
        begin, end = self._reduction.path(rank, (seen.window.begin, marks[-1]))
        now = (end - begin) / seen.window.steps
        own = (seen.excess - reference) * group.baseline
        onset = change_point(marks, path, now - own / 2)
        return Incident(rank, group.name, kind, onset, reference, score)

    # ---- How late, until when ------------------------------------------------------------------

    def _leave(self, windows: Sequence[Window]) -> None:
        # Only a window that is long enough and lies within the incident can show its end.
        for window in (each for each in windows if each.elapsed >= SHORT_SECONDS):
            shared = self._nodes.shared(window)
            for seen in seen_in([window]):
                incident = self._incidents.get(seen.standing.rank)
                if incident is None or window.begin.at < incident.onset.at:
                    continue
                if self._is_over(incident, seen, shared):
                    del self._incidents[incident.rank]
                    self._over[incident.rank] = window.begin.at

    def _is_over(
        self, incident: Incident, seen: WindowEvidence, shared: Mapping[int, float]
    ) -> bool:
        """Whether the rank has caught up in a window in which nodes have *shared* excesses."""
        excess, of_node = seen.excess - incident.reference, 0.0
        late = leave = LEAVE_RATIO if incident.kind != MILD else LEAVE_RATIO / 2
        if incident.kind == NODE:  # Late as long as it shares its node's excess.
            theirs = shared.get(self._reduction.nodes[incident.rank], 0.0)
            of_node = theirs if seen.excess > theirs / 2 else 0.0
            leave = max(theirs, LEAVE_RATIO) / 2
        has_fallen = incident.ratio - excess > LEAVE_ERRORS * seen.error
        is_back = max(excess, of_node) + BACK_ERRORS * seen.error < late
        return is_back or (has_fallen and excess < min(leave, late))

    def _late(self, end: Mark) -> list[Late]:
        """Describe each incident by the steps since its onset, at most the last minutes."""
        late = []
        windows: dict[Mark, Window] = {}
        least = self._history.least_steps
        recent = self._history.before(end, COST_SECONDS, least)
        for incident in self._incidents.values():
            begin = incident.onset
            steps = end.steps - begin.steps
            if steps < ENOUGH_STEPS and least_jump(steps, end.at - begin.at) == math.inf:
                continue
            if recent is not None and recent.at > begin.at:
                begin = recent
            if begin not in windows:
                windows[begin] = self._reduction.window(begin, end, self._incidents)
            seen = evidence_on(incident.rank, windows[begin])
            # Its cost must rest on enough steps.
            if seen.window.steps >= least or seen.excess > SURE_ERRORS * seen.error:
                late.append(self._describe(incident, seen, end))
        return late

    def _describe(self, incident: Incident, seen: WindowEvidence, end: Mark) -> Late:
        step_seconds = seen.window.seconds / seen.window.steps
        incident.ratio = max(seen.excess - incident.reference, 0.0)
        stages = seen.standing.stages
        if not incident.stage:
            incident.stage = furthest(stages)
        elif incident.stage == STAGES[OTHER] and self._is_in_data_now(incident, end):
            incident.stage, incident.is_renamed = STAGES[DATA], True
        if incident.is_renamed:
            stages = renamed(stages)
        # A rank that has nearly caught up keeps its kind: its node no longer tells it apart.
        if incident.kind in (PERSISTENT, NODE) and seen.excess > LEAVE_RATIO:
            incident.kind = NODE if self._nodes.share(seen) else PERSISTENT
        gpus = seen.standing.caused / step_seconds
        return Late(
            rank=incident.rank,
            peer_group=incident.group,
            stage=incident.stage,
            kind=incident.kind,
            ratio=incident.ratio,
            gpus=by_stage(gpus, stages),
            since_seconds=end.at - incident.onset.at,
            steps=end.steps - incident.onset.steps,
            confidence=incident.confidence,
        )

    def _is_in_data_now(self, incident: Incident, end: Mark) -> bool:
        """Whether its last steps are late in `data`, and no longer in `other`.

        One incident has one stage. In a loop without a loader, though, the probe needs a second or
        two to recognise that `other` is the reading of batches. A page waits for that.
        """
        begin = self._history.before(end, 0.0, RENAMED_STEPS)
        if begin is None:
            return False
        window = self._reduction.window(begin, end, self._incidents)
        excess = evidence_on(incident.rank, window).standing.stages
        is_data = furthest(excess) == STAGES[DATA]
        return is_data and excess[OTHER] < STAGE_SHARE * excess[DATA]


def _lasting(windows: Sequence[Window]) -> Window:
    """Return the shortest of *windows* that a single hiccup of the machine cannot fill."""
    return next((each for each in windows if each.elapsed >= SHORT_SECONDS), windows[0])
