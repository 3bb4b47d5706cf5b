"""Decides why a rank is late: the cause that accounts for its excess over its peers.

Also why all ranks of a node are slower than before; their own past then replaces the peers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from exporter.causes import cpu, device, input, network, units, work
from exporter.causes.case import Case, case_of
from exporter.causes.model import (
    UNKNOWN,
    Cause,
    Evidence,
    Figures,
    Guess,
    Lateness,
    Peers,
    Quantiles,
)
from exporter.causes.row import CauseRow, Certainty
from rank_probe.judge.verdict import NODE
from rank_probe.wire.stages import STAGES, SYNC

# A cause that accounts for less leaves most of the excess to something else.
ENOUGH: Final = 0.5
# Less is not worth a word.
WORTH_A_WORD: Final = 0.1
# Amounts are means of a noisy time: one that explains four fifths of what another does, explains
# as much.
AS_MUCH: Final = 0.8
MOST_GUESSES: Final = 2

# Of rows that are equally certain and account for as much, the first is reported.
ROWS: Final = (
    *work.MORE,
    *device.ROWS,
    *cpu.ROWS,
    *input.ROWS,
    *cpu.OF_NODE,
    *network.ROWS,
    *work.CODE_ROWS,
)
IF_UNKNOWN: Final = (
    "`py-spy dump --pid PID` on NODE, then `nvidia-smi -q -i UUID` (compare with a peer's)"
)
# Rows that compare a node with its past: what all of its ranks share. A longer wait in sync may be
# a wait for the network.
OVER_TIME: Final = tuple(
    replace(
        row,
        says=row.before,
        stages=(*row.stages, STAGES[SYNC]) if row.cause == network.NETWORK else row.stages,
    )
    for row in ROWS
    if row.before
)


@dataclass(frozen=True, slots=True)
class _Found:
    """A row that accounts for a *share* of the excess; *certainty* is how it is known here."""

    row: CauseRow
    certainty: Certainty
    share: float

    @property
    def name(self) -> tuple[str, str]:
        return self.row.cause, self.row.detail


def explain(
    late: Lateness, evidence: Evidence, peers: Peers | None, rows: Sequence[CauseRow] = ROWS
) -> Cause | None:
    """Return why a rank is late: UNKNOWN if no cause accounts for half of its excess over *peers*.

    None if there is no evidence at all.
    """
    case = case_of(late, evidence, peers)
    if case is None:
        return None
    found = [each for row in rows if (each := _found(row, case)) is not None]
    best = _best(found)
    if best is None:
        return _unknown(_guesses(found, case))
    others = _guesses((each for each in found if each.name != best.name), case)
    row, figure = best.row, best.row.about(case)
    return Cause(
        row.cause,
        row.detail,
        best.share,
        row.sentence(case),
        row.first_action,
        figure,
        case.own(figure),
        row.peers_value(case),
        others,
    )


def explain_change(
    stage: str, ratio: float, now: Figures, before: Figures, facts: Mapping[str, str]
) -> Cause | None:
    """Return why all ranks of a node take *ratio* times as long in *stage* as before; None if the
    figures that it had *before* and has *now* do not account for half of that.
    """
    known = now.keys() & before.keys() & {row.figure for row in OVER_TIME}
    was = {name: Quantiles(*[before[name]] * 3) for name in known}
    evidence = Evidence({name: now[name] for name in known}, facts=facts)
    found = explain(Lateness(stage, NODE, ratio - 1, {stage: 1.0}), evidence, was, OVER_TIME)
    if found is None or found.cause == UNKNOWN:
        return None
    return replace(found, first_action="")  # A row's action compares nodes.


def _found(row: CauseRow, case: Case) -> _Found | None:
    share = row.share(row, case)
    if share <= 0:
        return None
    if row.proof:
        proven = case.share(case.spent(row.stages, row.proof))
        if proven >= ENOUGH:
            return _Found(row, Certainty.REASON, proven)
    # Other ranks of the node have the same and are not late.
    if row.certainty is Certainty.NODE and case.late.kind != NODE and not case.late.is_alone:
        return None
    return _Found(row, row.certainty, share)


def _best(found: Iterable[_Found]) -> _Found | None:
    """Return the best row that accounts for half: a measured one if any, else a possible one."""
    enough = [each for each in found if each.share >= ENOUGH]
    measured = [each for each in enough if each.certainty <= Certainty.AMOUNT]
    most = max((each.share for each in measured), default=0.0)
    candidates = [each for each in measured if each.share >= AS_MUCH * most] or enough
    return min(candidates, key=lambda each: (each.certainty, -round(each.share, 2)), default=None)


def _guesses(found: Iterable[_Found], case: Case) -> tuple[Guess, ...]:
    told: dict[tuple[str, str], _Found] = {}
    for each in sorted(found, key=lambda each: (-round(each.share, 2), each.certainty)):
        if each.share >= WORTH_A_WORD:
            told.setdefault(each.name, each)
    return tuple(
        Guess(*each.name, each.share, each.row.sentence(case))
        for each in list(told.values())[:MOST_GUESSES]
    )


def _unknown(guesses: tuple[Guess, ...]) -> Cause:
    sentence = "no measured cause accounts for half of the delay"
    if guesses:
        said = "; ".join(
            f"{each.sentence} ({units.text('ratio', each.share)} of it)" for each in guesses
        )
        sentence = f"{sentence}: {said}"
    return Cause(UNKNOWN, "", 0.0, sentence, IF_UNKNOWN, others=guesses)
