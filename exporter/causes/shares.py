"""How much of the excess a row accounts for, 0 to 1: ways to tell it from a figure or a state."""

from collections.abc import Callable

from exporter.causes.case import Case
from exporter.causes.row import CauseRow

Share = Callable[[CauseRow, Case], float]


def waits(least: float) -> Share:
    """The figure is a share of the time, at least so much over its peers': that time, a step."""

    def share(row: CauseRow, case: Case) -> float:
        more = _more(row, case)
        if more < least:
            return 0.0
        room = case.room(row.stages, row.states)
        return case.share(min(room, more * case.excess.step))

    return share


def slower(least: float) -> Share:
    """The figure is a speed, lower than its peers' by so much of it: its time grows as much."""

    def share(row: CauseRow, case: Case) -> float:
        own, peers = case.own(row.figure), case.upper(row.figure)
        if own is None or peers is None or own < 0 or peers <= 0 or own > (1 - least) * peers:
            return 0.0
        return case.share(case.stretched(row.stages, row.states, 1 - own / peers))

    return share


def more_work(least: float) -> Share:
    """The figure is work a step, more than its peers' by so much of theirs."""

    def share(row: CauseRow, case: Case) -> float:
        own, peers = case.own(row.figure), case.lower(row.figure)
        if own is None or peers is None or peers <= 0 or own < (1 + least) * peers:
            return 0.0
        return case.share(case.stretched(row.stages, row.states, 1 - peers / own))

    return share


def has_more(least: float, at_least: float = 0.0) -> Share:
    """The figure, *at_least* so much, is over its peers' by *least*; it may cost all of it."""

    def share(row: CauseRow, case: Case) -> float:
        own = case.own(row.figure)
        if own is None or own < at_least or _more(row, case) < least:
            return 0.0
        return case.share(case.likely(row.stages, row.states))

    return share


def has_less(than: float, at_most: float = float("inf")) -> Share:
    """The figure, *at_most* so much, is less *than* this share of its peers'."""

    def share(row: CauseRow, case: Case) -> float:
        own, peers = case.own(row.figure), case.upper(row.figure)
        if own is None or peers is None or own > at_most or own >= than * peers:
            return 0.0
        return case.share(case.likely(row.stages, row.states))

    return share


def unless(other: str, share: Share) -> Share:
    """As *share*, where the figure *other*, which says more, is not known of rank and peers."""

    def without(row: CauseRow, case: Case) -> float:
        is_known = case.own(other) is not None and case.upper(other) is not None
        return 0.0 if is_known else share(row, case)

    return without


def is_in_state(row: CauseRow, case: Case) -> float:
    """The row's states themselves, up to the excess."""
    return case.share(case.spent(row.stages, row.states))


def is_in_state_like_peers(row: CauseRow, case: Case) -> float:
    """The row's states, where peers spend their time in that stage in the same way."""
    return case.share(case.spent_beyond(row.stages, row.states))


def work(case: Case, row: CauseRow, running: str, queued: str, per_running: float) -> float:
    """Return the part of the time in the row's states that its work takes, 0 to 1.

    That is the time in *running*, and of that in *queued* as much as peers wait for a CPU *per
    running* time: where CPUs are short, waiting for one is a part of the work.
    """
    runs = case.spent(row.stages, frozenset({running}))
    waits = case.spent(row.stages, frozenset({queued}))
    return (runs + min(waits, per_running * runs)) / (runs + waits) if runs else 0.0


def has_stage_alone(row: CauseRow, case: Case) -> float:
    """The excess in the row's stages, if no peer has these at all."""
    alone = case.excess.alone
    return case.share(sum(case.excess.more[stage] for stage in row.stages if stage in alone))


def _more(row: CauseRow, case: Case) -> float:
    own, peers = case.own(row.figure), case.lower(row.figure, row.healthy)
    return 0.0 if own is None or peers is None else own - peers
