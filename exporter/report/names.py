"""The names that nodes had when an alert fired, where the alert has only an address."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from exporter.client.names import NAME, of_addresses
from exporter.report.history import Grid, History, Line
from exporter.report.incidents import Firing

STEP_SECONDS: Final = 3600.0


def with_names(history: History, times: Grid, fired: Sequence[Firing]) -> list[Firing]:
    """Return *fired* within *times*, with a label nodename where it is known; raises Trouble."""
    nameless = [each for each in fired if not each.labels.get("nodename")]
    those = of_addresses(each.labels.get("instance", "") for each in nameless)
    if those is None:
        return list(fired)
    recorded = f'last_over_time({NAME}{{{those},nodename!=""}}[{STEP_SECONDS * 1000:.0f}ms])'
    named: dict[tuple[str, str], list[Line]] = defaultdict(list)
    hours = Grid(times.begin, times.end + STEP_SECONDS, STEP_SECONDS)
    for line in history.lines(recorded, hours):
        named[line["cluster"], line["instance"]].append(line)
    return [
        _named(each, named[_node(each)]) if each in nameless and _node(each) in named else each
        for each in fired
    ]


def _node(firing: Firing) -> tuple[str, str]:
    return firing.labels.get("cluster", ""), firing.labels.get("instance", "")


def _named(firing: Firing, lines: Sequence[Line]) -> Firing:
    """Add the name of that time: an address may go to another node."""
    begin, _ = firing.spans[0]
    line = min(lines, key=lambda each: min(abs(at - begin) for at in each.times))
    return replace(firing, labels={**firing.labels, "nodename": line["nodename"]})
