"""Decides whether a node is to be held, kept, or freed. Pure: it asks nobody and has no clock."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import floor, inf
from typing import Final

from exporter.vocabulary.words import cause_in_short
from rankskew.act.model import Decision, Episode, HeldNodes, Limits, NodeAction, Seen
from rankskew.client.names import ADDRESS
from rankskew.report.times import length, seconds, within

# The causes that lie in the node itself, with their details; None for all of them. The others are
# the job's (input, batches, code, duties), may be (who takes the CPU?), or are not known.
NODE_CAUSES: Final[Mapping[str, frozenset[str] | None]] = {
    "slow_device": None,
    "cpu": frozenset({"thermal", "frequency", "steal"}),
    "network": frozenset({"speed", "errors", "retransmits"}),
}
# A series of ALERTS ends with its alert; two evaluations may be missing.
STILL_SECONDS: Final = 120.0
# An alert that is back after less is the same incident, as in the report.
GAP_SECONDS: Final = 600.0
# Schedulers read lists and patterns (node[1-9], ALL) where they expect a name.
NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
RESERVED: Final = ("all", "default")


def is_name(text: str) -> bool:
    """Say whether *text* is the name of one node, and no address."""
    is_one = NAME.fullmatch(text) is not None and text.lower() not in RESERVED
    return is_one and not ADDRESS.fullmatch(text)


def is_of_node(cause: str, detail: str) -> bool:
    """Say whether a cause lies in the node, and not in what runs on it."""
    details = NODE_CAUSES.get(cause, frozenset())
    return details is None or detail in details


def decide(state: HeldNodes, seen: Seen, limits: Limits, now: float) -> Decision:
    """Return what to do with the node that was *seen*."""
    if seen.node in state.held:
        return _of_held(state, seen, limits, now)
    after = max(now - limits.window_seconds, state.freed.get(seen.node, 0.0))
    # Before, it was answered, or is too old.
    parts = [replace(each, spans=within(each.spans, after, inf)) for each in seen.episodes]
    episodes = [each for each in parts if each.spans]
    if not episodes or episodes[-1].end < now - GAP_SECONDS:
        return Decision(NodeAction.DISMISS, "quiet", "Prometheus has no alert on it that fires")
    firing = [each for each in episodes if each.end >= now - STILL_SECONDS]
    if not firing:
        return Decision(NodeAction.WAIT, "pause", "its alert does not fire just now", episodes[-1])
    of_node = [each for each in episodes if is_of_node(each.cause, each.detail)]
    latest = next((each for each in reversed(firing) if each in of_node), None)
    if latest is None:
        why = f"the cause, {_cause(firing[-1])}, does not lie in the node"
        return Decision(NodeAction.WAIT, "cause", why, firing[-1])
    if not is_name(seen.name):
        why = "Prometheus does not say what its scheduler calls it: set --node.name of its exporter"
        return Decision(NodeAction.WAIT, "name", why, latest)
    many, window, lasted = len(of_node), length(limits.window_seconds), seconds(latest.spans)
    times = f"{many} time{'s' * (many > 1)} in {window}"
    evidence = f"{_cause(latest)} for {length(lasted)}, {times}"
    if lasted < limits.lasting_seconds and many < limits.episodes:
        enough = f"{length(limits.lasting_seconds)} or {limits.episodes} times are enough"
        return Decision(NodeAction.WAIT, "not_yet", f"{evidence}; {enough}", latest)
    for rule, why in _limits(state, seen, limits):
        return Decision(NodeAction.WAIT, rule, f"{evidence}; but {why}", latest)
    last = f"last {latest.place} of job {latest.job_id}, incident {latest.incidents[-1]}"
    return Decision(NodeAction.HOLD, "of_node", f"{evidence}; {last}", latest)


def _limits(state: HeldNodes, seen: Seen, limits: Limits) -> Iterator[tuple[str, str]]:
    """Yield each limit that one more node would break, and how."""
    if len(state.held) >= limits.most_nodes:
        yield "most_nodes", f"{len(state.held)} are held, and no more than {limits.most_nodes} may"
    held = {each.name for node, each in state.held.items() if node.cluster == seen.node.cluster}
    pools = {pool: names for pool, names in seen.pools.items() if seen.name in names}
    if not pools:
        yield "no_pool", "its exporter does not answer, so it is not known of how many it is one"
    for pool, names in pools.items():
        most = floor(limits.most_percent * len(names) / 100 + 1e-9)
        if (many := len(held & names)) >= most:
            share = f"{limits.most_percent:g} % of its {len(names)} nodes"
            yield "most_percent", f"{many} of {pool} are held, and {most} may, {share}"
    for job_id, names in seen.jobs.items():
        left = len(names - held - {seen.name})
        if left < limits.job_nodes_left:
            must = f"{left} of {len(names)} nodes, and {limits.job_nodes_left} must stay"
            yield "job", f"job {job_id} would have left {must}"


def _of_held(state: HeldNodes, seen: Seen, limits: Limits, now: float) -> Decision:
    since = state.held[seen.node].since
    quiet_since = max([since, *(each.end for each in seen.episodes)])
    judged, so_long = seconds(within(seen.judged, quiet_since, now)), max(0.0, now - since)
    if judged >= limits.back_seconds:
        why = f"its ranks were judged for {length(judged)}, and none was late"
        return Decision(NodeAction.FREE, "recovered", why)
    if limits.again_seconds is not None and so_long >= limits.again_seconds:
        return Decision(
            NodeAction.FREE, "again", f"it was held for {length(so_long)}: another chance"
        )
    return Decision(NodeAction.KEEP, "held", f"it is held, for {length(so_long)}")


def _cause(episode: Episode) -> str:
    return cause_in_short(episode.cause, episode.detail)
