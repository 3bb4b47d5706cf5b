"""What to do first about a job: one command, or one place to look, for each state."""

from collections.abc import Mapping, Sequence
from typing import Final

from exporter.causes.model import UNKNOWN
from exporter.live import states
from exporter.live.ranks import RankView
from exporter.live.sentences import LateView
from exporter.live.standstill import holding
from exporter.live.wording import sentence
from exporter.vocabulary.advice import filled, situations
from rank_probe.judge.verdict import DUTY, NO_BUSY_TIME, NO_PEERS, NO_SYNC, PAUSES

# States, and reasons why a job cannot be judged, in which one action is the first on any rank.
ADVISED: Final = (
    *(states.NO_PROBE, states.UNUSED_GPUS, states.PAUSED, states.ROTATING),
    *("off", "no_join", "join_incomplete", NO_SYNC, NO_PEERS, NO_BUSY_TIME),
)


def first_action(
    job_id: str,
    state: str,
    reason: str | None,
    late: Sequence[LateView],
    ranks: Sequence[RankView],
    alert: str | None = None,
    suspect: Mapping[str, str] | None = None,
    world_size: int | None = None,
) -> str | None:
    """Return what to do first about the job in *state*; *ranks* are those on this node.

    *alert* is the one that the state raises; a job that stands still waits for *suspect*, if that
    is on another node. None if there is nothing to do.
    """
    running = [rank for rank in ranks if not rank.finished]
    if state in (states.STRAGGLER, states.SLOW_NODE):
        return _about_late(job_id, state, late, ranks)
    if state == states.HUNG:
        return _elsewhere(job_id, suspect) if suspect else _about_hung(job_id, ranks, world_size)
    if state == states.RANKS_MISSING:
        return _about_missing(job_id, running)
    if state in (states.STARTING, states.STANDS_STILL) and alert is not None and running:
        return _stack(running[0])
    if state == states.SHARED:
        return _record(running[0])
    return next((advised(each, job_id) for each in (state, reason) if each in ADVISED), None)


def advised(situation: str, job_id: str) -> str:
    """Return what the advice on a *situation* of a job says to do first, as a sentence."""
    return f"{sentence(filled(situations()[situation].first, {'JOB': job_id}))}."


def _about_late(
    job_id: str, state: str, late: Sequence[LateView], ranks: Sequence[RankView]
) -> str | None:
    called_late = [each for each in late if each.is_called_late]
    here = {rank.rank: rank for rank in ranks}
    if not called_late:
        return None
    mine = min(called_late, key=lambda each: each.rank not in here)
    cause = mine.cause
    if cause is not None and cause.cause != UNKNOWN and cause.first_action:
        return cause.first_action
    if mine.rank not in here:
        return _elsewhere(job_id, {"rank": str(mine.rank), **mine.at})
    rank = here[mine.rank]
    if state == states.SLOW_NODE:
        return f"top -H{_on(rank)}: what runs there that does not belong to the job?"
    if mine.kind in (PAUSES, DUTY):
        return _record(rank)
    return _stack(rank) if cause is None else cause.first_action


def _about_hung(job_id: str, ranks: Sequence[RankView], world_size: int | None) -> str:
    those = holding(ranks)
    if not those and len(ranks) == world_size:
        every = "and the same for every other rank: do all wait in the same collective?"
        return f"{_stack(ranks[0])}, {every}"
    if not those:
        return (
            "Look at the live pages of the job's other nodes: "
            f'rankskew_node_ranks{{job_id="{job_id}"}} has them all.'
        )
    if those[0].finished:
        return f"Read the log of rank {those[0].rank}{_on(those[0])}: it has finished."
    silent = next((rank for rank in those if rank.silent), None)
    return _stack(those[0]) if silent is None else _status(silent)


def _about_missing(job_id: str, running: Sequence[RankView]) -> str:
    silent = next((rank for rank in running if rank.silent), None)
    return advised(states.RANKS_MISSING, job_id) if silent is None else _status(silent)


def _elsewhere(job_id: str, at: Mapping[str, str]) -> str:
    if "page" in at:
        return f"Open {at['page']}, the live page of the node of rank {at['rank']}."
    return (
        f"Open the live page of the node of rank {at['rank']}, the instance of "
        f'rankskew_rank_info{{job_id="{job_id}",rank="{at["rank"]}"}}.'
    )


def _stack(rank: RankView) -> str:
    return f"py-spy dump --pid {rank.pid}{_on(rank)}"


def _record(rank: RankView) -> str:
    return f"py-spy record --duration 60 --pid {rank.pid} -o pauses.svg{_on(rank)}"


def _status(rank: RankView) -> str:
    return f"ps -o pid,stat,etime,wchan:32,args -p {rank.pid}{_on(rank)}"


def _on(rank: RankView) -> str:
    return f" on {rank.host}" if rank.host else ""
