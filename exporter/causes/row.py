"""A row: one cause to look for, the evidence that shows it, and the sentence about it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from exporter.causes import units
from exporter.causes.case import Case
from exporter.causes.excess import stage_figure
from exporter.causes.tokens import ANY
from rank_probe.wire.stages import STAGES, SYNC

OWN_STAGES: Final = tuple(stage for stage in STAGES if stage != STAGES[SYNC])
ON_GPU: Final = ("h2d", "forward", "backward", "compute", "optimizer")
LOADING: Final = ("data",)
TEMPERATURE: Final = "gpu_temperature_celsius"
# A figure's fact may stand under another figure: the driver's reason for a clock.
ALSO_OF: Final = {"sm_clock_hertz": "gpu_throttled_ratio"}
_OPTIONAL: Final = re.compile(r"\[([^\[\]]*)\]")
_NAMED: Final = re.compile(r"{(\w+)}")


class Certainty(IntEnum):
    """How a cause is known, the surest first: it decides between causes that explain as much.

    WORK: the rank measurably does more work, which also heats, fills queues and takes time.
    REASON: measured, and why the rank waits or is slow; an AMOUNT only shows that it does or is.
    FACT: something that its peers do not have. Its cost is unknown, and may be all of the excess
    in its stages. NODE: such a fact about its node, which may concern others instead.
    GUESS: what its thread does there; its peers' threads may do the same.
    """

    WORK = 0
    REASON = 1
    AMOUNT = 2
    FACT = 3
    NODE = 4
    GUESS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """A cause that can delay the *stages*, known by *figure* or, without one, by *states*.

    *share* returns how much of the excess it accounts for, 0 to 1. A thread that it delays is in
    one of *states* (see tokens.py): a thread that sleeps is not slowed down by its GPU. If the
    thread was seen in a state of *proof* for half of the excess, the certainty becomes REASON.

    *says* is the sentence, with {own}, {peers}, {fact}, {temperature}, {place}, {time}, and {es}
    for a plural; a part in [brackets] is left out if a value in it is unknown. *healthy* is the
    value assumed for peers of whom nothing is known. *lowers*: the fault lowers the figure.
    *before* is the sentence for a node whose ranks are all slower than they were; {peers} is then
    the earlier value. A row without *before* cannot explain that.
    """

    cause: str
    detail: str = ""
    certainty: Certainty
    figure: str = ""
    stages: tuple[str, ...] = OWN_STAGES
    states: frozenset[str] = ANY
    proof: frozenset[str] = frozenset()
    share: Callable[["CauseRow", Case], float]
    says: str
    first_action: str
    healthy: float | None = None
    lowers: bool = False
    before: str = ""

    def sentence(self, case: Case) -> str:
        """Return what is said of *case*."""
        values = _values(self, case)
        known = {name: value for name, value in values.items() if value is not None}
        return _without_unknown(self.says, known).format_map(known)

    def about(self, case: Case) -> str:
        """Return the figure that the sentence is about: the row's own, else the time in a stage."""
        if self.figure:
            return self.figure
        stage, _, _ = case.where(self.stages, self.states)
        alone = [each for each in self.stages if each in case.excess.alone]
        most = max(alone, key=lambda each: case.excess.more[each], default="")
        found = stage_figure(stage or most)
        return found if case.own(found) is not None else ""

    def peers_value(self, case: Case) -> float | None:
        """Return the peers' value of the figure about(): that of their better third."""
        figure = self.about(case)
        if self.figure and self.lowers:
            return case.upper(figure)
        return case.lower(figure, self.healthy)


def _values(row: CauseRow, case: Case) -> Mapping[str, str | None]:
    figure, hot = row.about(case), case.own(TEMPERATURE)
    own, peers = case.own(figure), row.peers_value(case)
    texts: tuple[str | None, str | None] = (None, None)
    if own is not None:
        texts = (units.text(figure, own), None) if peers is None else units.pair(figure, own, peers)
    _, place, seconds = case.where(row.stages, row.states)
    fact = case.facts.get(row.figure) or case.facts.get(ALSO_OF.get(row.figure, ""))
    return {
        "own": texts[0],
        "peers": texts[1],
        "es": "" if own == 1 else "es",
        "fact": fact or None,
        "temperature": None if hot is None else units.text(TEMPERATURE, hot),
        "place": place or None,
        "time": _time(case, seconds) if seconds > 0 else None,
    }


def _time(case: Case, seconds: float) -> str:
    if case.excess.in_seconds:
        return f"{units.text('seconds', seconds)} a step"
    return f"{units.text('ratio', seconds / sum(case.excess.own.values()))} of its time"


def _without_unknown(says: str, known: Mapping[str, str]) -> str:
    """Return *says* without brackets, and without bracketed parts that name an unknown value."""
    while (found := _OPTIONAL.search(says)) is not None:
        inner = found[1] if all(name in known for name in _NAMED.findall(found[1])) else ""
        says = says[: found.start()] + inner + says[found.end() :]
    return says
