"""`rank-probe audit`: its options, and what each rank does; rank 0 gathers and reports."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rank_probe.audit import devices, exchange, gather
from rank_probe.audit.exchange import Exchange, NoAnswer
from rank_probe.audit.facts import NodeMounts
from rank_probe.audit.findings import Launch
from rank_probe.audit.report import as_json, as_text, audit, failed
from rank_probe.command_line.parser import CommandParser, positive_duration
from rank_probe.process import identity

DESCRIPTION: Final = """\
Say whether this launch could be slow, or hang, because of how it is set up. Under
a launcher the ranks post what they see to the launcher's store, and rank 0 compares
and prints; alone it looks at this node. It starts nothing and changes nothing."""
EXAMPLES: Final = """\
exit status: 0 if nothing fails, 1 if something does, 2 if it could not look;
torchrun turns each of these that is not 0 into 1

examples:
  torchrun --nproc-per-node 8 -m rank_probe audit
  srun python -m rank_probe audit --timeout 2m   # with MASTER_ADDR and MASTER_PORT set
  rank-probe audit --strict                      # a node, in a prolog or an init container
  rank-probe audit --json | jq '.checks[] | select(.status == "fail")'
"""
# Shares of the timeout: ranks may post until the first, and wait for the answer until the second.
# In between, rank 0 reads and compares, which takes 20 s with 16,384 ranks.
GATHERING: Final = 0.5
HEARING: Final = 0.95
READING: Final = "reading this node, where a call into the driver may hang: look at dmesg"


def parser() -> CommandParser:
    """Return the parser of the command's options."""
    options = CommandParser("audit", DESCRIPTION, EXAMPLES)
    options.add_argument(
        "--timeout",
        metavar="DURATION",
        type=positive_duration,
        default=60.0,
        help="end after this long, such as 60s or 5m, with what is known by then (default: 60s)",
    )
    options.add_argument("--strict", action="store_true", help="let a warning fail the audit")
    options.add_argument("--json", action="store_true", help="print one JSON document")
    options.add_argument(
        "--path.procfs", metavar="PATH", type=Path, default="/proc", help="the node's /proc"
    )
    options.add_argument(
        "--path.sysfs", metavar="PATH", type=Path, default="/sys", help="the node's /sys"
    )
    return options


def run(arguments: Sequence[str]) -> int:
    """Print what was found, on rank 0; return the exit status. Raises WrongCommand."""
    options = parser().parse_args(arguments)
    mounts = NodeMounts(vars(options)["path.procfs"], vars(options)["path.sysfs"])

    def report(launch: Launch) -> int:
        outcomes = audit(launch)
        show = as_json if options.json else as_text
        print(show(launch, outcomes, options.strict), flush=True)
        return int(failed(outcomes, options.strict))

    with _ending_after(options.timeout) as doing:
        try:
            return look(mounts, options.timeout, os.environ, report, doing)
        except NoAnswer as error:
            print(f"rank-probe: {error}", file=sys.stderr, flush=True)
            return 2


def look(
    mounts: NodeMounts,
    seconds: float,
    environment: Mapping[str, str],
    report: Callable[[Launch], int],
    doing: Callable[[str], None],
) -> int:
    """Return the exit status, which is that of *report* on rank 0; raises NoAnswer.

    *doing* is called with each step that begins, in words that fit the message on a timeout.
    """
    began = time.monotonic()
    me = identity.from_environment(environment)
    if me is None:
        doing(READING)
        mine = gather.facts(0, 0, environment, mounts, with_torch=False)
        here = max(1, len(devices.visible_gpus([mine])[0].visible))
        why_not = "without a launcher there is no other rank to compare with"
        return report(Launch([mine], cannot_compare=why_not, alone=True, ranks_here=here))
    local_rank = int(me.local_rank) if me.local_rank.isdecimal() else 0
    doing("importing torch, which may be slow from a shared file system")
    why_not = "the job has one rank" if me.world_size == 1 else exchange.why_not(environment)
    if why_not:
        doing(READING)
        mine = gather.facts(me.rank, local_rank, environment, mounts, with_torch=False)
        return report(Launch([mine], me.world_size, cannot_compare=why_not))
    doing("connecting to the store of the launcher")
    link = Exchange(me.rank, me.world_size, environment, HEARING * seconds)
    doing(READING)
    mine = gather.facts(me.rank, local_rank, environment, mounts, with_torch=True)
    doing("waiting for the other ranks")
    link.post(mine)
    if me.rank != 0:
        try:
            return link.hear()
        except NoAnswer as error:
            if local_rank:
                return 2  # One rank of each node says why.
            raise NoAnswer(f"rank {me.rank} heard nothing from rank 0: {error}") from error
    facts, missing = link.gather(began + GATHERING * seconds - time.monotonic())
    status = report(Launch(facts, me.world_size, missing))
    link.tell(status, others=len(facts) - 1)
    return status


@contextmanager
def _ending_after(seconds: float) -> Iterator[Callable[[str], None]]:
    """End the process if the block takes longer than *seconds*: a driver call may never return.

    Yields a function that the block calls with what it is doing.
    """
    told = ["starting"]

    def end() -> None:
        sentence = f"the audit did not end within {seconds:g} s: it was {told[-1]}"
        os.write(2, f"rank-probe: {sentence}\n".encode())
        os._exit(2)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield told.append
    finally:
        timer.cancel()
