"""Ways to compute the share (0 to 1) of the excess that a row accounts for."""

from collections.abc import Callable

from exporter.causes.case import Case
from exporter.causes.row import CauseRow

Share = Callable[[CauseRow, Case], float]


def waits(least: float) -> Share:
    """For a share of the time that is over its peers' by *least*: that difference, per step."""

    def share(row: CauseRow, case: Case) -> float:
        more = _more(row, case)
        if more < least:
            return 0.0
        room = case.room(row.stages, row.states)
        return case.share(min(room, more * case.excess.step))

    return share


def slower(least: float) -> Share:
    """For a speed that is below its peers' by the share *least*: the time that this adds."""

    def share(row: CauseRow, case: Case) -> float:
        own, peers = case.own(row.figure), case.upper(row.figure)
        if own is None or peers is None or own < 0 or peers <= 0 or own > (1 - least) * peers:
            return 0.0
        return case.share(case.stretched(row.stages, row.states, 1 - own / peers))

    return share


def more_work(least: float) -> Share:
    """For work per step that is over its peers' by the share *least*: the time that this adds."""

    def share(row: CauseRow, case: Case) -> float:
        own, peers = case.own(row.figure), case.lower(row.figure)
        if own is None or peers is None or peers <= 0 or own < (1 + least) * peers:
            return 0.0
        return case.share(case.stretched(row.stages, row.states, 1 - peers / own))

    return share


def has_more(least: float, at_least: float = 0.0) -> Share:
    """For a figure of *at_least* or more, over its peers' by *least*: all that it may cost."""

    def share(row: CauseRow, case: Case) -> float:
        own = case.own(row.figure)
        if own is None or own < at_least or _more(row, case) < least:
            return 0.0
        return case.share(case.likely(row.stages, row.states))

    return share


def has_less(than: float, at_most: float = float("inf")) -> Share:
    """For a figure of *at_most* or less, below the share *than* of its peers': all it may cost."""

    def share(row: CauseRow, case: Case) -> float:
        own, peers = case.own(row.figure), case.upper(row.figure)
        if own is None or peers is None or own > at_most or own >= than * peers:
            return 0.0
        return case.share(case.likely(row.stages, row.states))

    return share


def unless(other: str, share: Share) -> Share:
    """*share*, unless the more telling figure *other* is known for the rank and its peers."""

    def without(row: CauseRow, case: Case) -> float:
        is_known = case.own(other) is not None and case.upper(other) is not None
        return 0.0 if is_known else share(row, case)

    return without


def is_in_state(row: CauseRow, case: Case) -> float:
    """The time in the row's states, up to the excess."""
    return case.share(case.spent(row.stages, row.states))


def is_in_state_like_peers(row: CauseRow, case: Case) -> float:
    """The time in the row's states, if peers spend their part of that stage in the same way."""
    return case.share(case.spent_beyond(row.stages, row.states))


def work(case: Case, row: CauseRow, running: str, queued: str, per_running: float) -> float:
    """Return the share of the time in the row's states that its work takes, 0 to 1.

    That is the time in *running*, and the time in *queued* up to *per_running*, the peers' wait for
    a CPU per second of running: where CPUs are short, waiting for one is part of the work.
    """
    runs = case.spent(row.stages, frozenset({running}))
    waits = case.spent(row.stages, frozenset({queued}))
    return (runs + min(waits, per_running * runs)) / (runs + waits) if runs else 0.0


def has_stage_alone(row: CauseRow, case: Case) -> float:
    """The excess in those of the row's stages that no peer has at all."""
    alone = case.excess.alone
    return case.share(sum(case.excess.more[stage] for stage in row.stages if stage in alone))


def _more(row: CauseRow, case: Case) -> float:
    own, peers = case.own(row.figure), case.lower(row.figure, row.healthy)
    return 0.0 if own is None or peers is None else own - peers
