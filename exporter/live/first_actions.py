"""What to do first about a job: one command, or one place to look, for each state."""

from collections.abc import Mapping, Sequence
from typing import Final

from exporter.causes.model import UNKNOWN
from exporter.live import states
from exporter.live.ranks import RankView
from exporter.live.sentences import LateView
from exporter.live.standstill import holding
from rank_probe.judge.verdict import DUTY, PAUSES

# By the reason why a job cannot be judged, or not yet.
NOT_JUDGEABLE: Final = {
    "off": "rankskew control {job_id} stages",
    "no_join": "Look into the log of rank 0: it says why the ranks do not compare their steps.",
    "no_sync": "Mark the collective in the training loop as the stage sync.",
    "no_peers": "Leave RANKSKEW_PEER_GROUP unset if the ranks do equal work.",
    "no_busy_time": "Mark the stages of the training loop: nothing but its waiting is seen.",
}
RESTART: Final = (
    "Restart the job with the probe, before its script: torchrun ... -m rank_probe train.py."
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
    if state == states.NO_PROBE:
        return RESTART
    if state == states.UNUSED_GPUS:
        return "Start a rank on each GPU that the job holds, or let it ask for fewer."
    if state in (states.STRAGGLER, states.SLOW_NODE):
        return _about_late(job_id, state, late, ranks)
    if state == states.HUNG:
        return _elsewhere(job_id, suspect) if suspect else _about_hung(job_id, ranks, world_size)
    if state == states.RANKS_MISSING:
        return _about_missing(job_id, running)
    if state in (states.STARTING, states.STANDS_STILL) and alert is not None and running:
        return _stack(running[0])
    if state == states.ROTATING:
        return "Compare the work of the ranks in one step: sequence lengths, samples, files."
    if reason in NOT_JUDGEABLE:
        return NOT_JUDGEABLE[reason].format(job_id=job_id)
    return None


def _about_late(
    job_id: str, state: str, late: Sequence[LateView], ranks: Sequence[RankView]
) -> str | None:
    called_late = [each for each in late if each.is_called_late]
    here = {rank.rank: rank for rank in ranks}
    if not called_late:
        return None
    mine = min(called_late, key=lambda each: each.rank not in here)
    cause = mine.cause
    if cause is not None and cause.cause != UNKNOWN:
        return cause.first_action
    if mine.rank not in here:
        return _elsewhere(job_id, {"rank": str(mine.rank), **mine.at})
    rank = here[mine.rank]
    if state == states.SLOW_NODE:
        return f"top -H{_on(rank)}: what runs there that does not belong to the job?"
    if mine.kind in (PAUSES, DUTY):
        return f"py-spy record --duration 60 --pid {rank.pid} -o pauses.svg{_on(rank)}"
    return _stack(rank) if cause is None else cause.first_action


def _about_hung(job_id: str, ranks: Sequence[RankView], world_size: int | None) -> str:
    those = holding(ranks)
    if not those and len(ranks) == world_size:
        return f"{_stack(ranks[0])}, and so of each rank: do all wait in the same collective?"
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
    silent = [rank for rank in running if rank.silent]
    if silent:
        return _status(silent[0])
    return (
        "Compare the job's nodes with those that report: "
        f'rankskew_node_ranks{{job_id="{job_id}",state="beating"}}.'
    )


def _elsewhere(job_id: str, at: Mapping[str, str]) -> str:
    if "page" in at:
        return f"Open {at['page']}, the live page of the node of rank {at['rank']}."
    return (
        f"Open the live page of the node of rank {at['rank']}, the instance of "
        f'rankskew_rank_info{{job_id="{job_id}",rank="{at["rank"]}"}}.'
    )


def _stack(rank: RankView) -> str:
    return f"py-spy dump --pid {rank.pid}{_on(rank)}"


def _status(rank: RankView) -> str:
    return f"ps -o pid,stat,etime,wchan:32,args -p {rank.pid}{_on(rank)}"


def _on(rank: RankView) -> str:
    return f" on {rank.host}" if rank.host else ""
