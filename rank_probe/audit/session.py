"""One rank's part in an audit: it posts, and rank 0 gathers and reports."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from rank_probe.audit import exchange
from rank_probe.audit.checks.launch import Launch
from rank_probe.audit.exchange import Exchange, NoAnswer
from rank_probe.audit.readings import devices, gather
from rank_probe.audit.readings.files import NodeMounts
from rank_probe.process import identity
from rank_probe.process.identity import Identity

# Parts of the time: until the first others may report, until the second they wait for the answer.
# Between them rank 0 reads and compares, which takes 20 s with 16,384 ranks.
GATHERING: Final = 0.5
HEARING: Final = 0.95
READING: Final = "reading this node, where a call into the driver may hang: look at dmesg"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user asks for; *ranks_here* is how many ranks a node will have, None if unknown."""

    workers: int
    pin_memory: bool
    ranks_here: int | None
    seconds: float
    mounts: NodeMounts


def look(
    asked: Asked,
    environment: Mapping[str, str],
    report: Callable[[Launch], int],
    doing: Callable[[str], None],
) -> int:
    """Return the exit status, which is that of *report* on rank 0; raises NoAnswer.

    *doing* is told what begins, in the words of a sentence on what took too long.
    """
    began = time.monotonic()
    launch = partial(Launch, workers=asked.workers, pin_memory=asked.pin_memory)
    me = identity.from_environment(environment)
    if me is None:
        doing(READING)
        mine = gather.facts(0, 0, environment, asked.mounts, with_torch=False)
        visible = len(devices.seen([mine])[0].visible)
        return report(
            launch(
                [mine],
                cannot_compare="without a launcher there is no other rank to compare with",
                alone=True,
                ranks_here=asked.ranks_here or max(1, visible),
            )
        )
    doing("importing torch, which may be slow from a shared file system")
    why_not = "the job has one rank" if me.world_size == 1 else exchange.why_not(environment)
    if why_not:
        doing(READING)
        mine = gather.facts(me.rank, _local_rank(me), environment, asked.mounts, with_torch=False)
        return report(launch([mine], me.world_size, cannot_compare=why_not))
    doing("connecting to the store of the launcher")
    link = Exchange(me.rank, me.world_size, environment, HEARING * asked.seconds)
    doing(READING)
    mine = gather.facts(me.rank, _local_rank(me), environment, asked.mounts, with_torch=True)
    doing("waiting for the other ranks")
    link.post(mine)
    if me.rank != 0:
        return _hear(link, me)
    facts, missing = link.gather(began + GATHERING * asked.seconds - time.monotonic())
    status = report(launch(facts, me.world_size, missing))
    link.tell(status, others=len(facts) - 1)
    return status


def _hear(link: Exchange, me: Identity) -> int:
    """Return what rank 0 tells; one rank of each node says so if it does not."""
    try:
        return link.hear()
    except NoAnswer as error:
        if _local_rank(me) == 0:
            raise NoAnswer(f"rank {me.rank} heard nothing from rank 0: {error}") from error
        return 2


def _local_rank(me: Identity) -> int:
    return int(me.local_rank) if me.local_rank.isdecimal() else 0
