"""The process that talks to the driver: `python -m exporter.nvml.worker` writes one sample a line.

End of file on standard input means that the parent has ended, and ends it. SIGTERM ends it too.
"""

import faulthandler
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import BinaryIO, Final

from exporter.nvml.calls import CallFailed
from exporter.nvml.process import SUPERSEDED_STATUS
from exporter.nvml.timing import Timing
from exporter.nvml.worker.node import NeedsNewProcess, NodeSampler

# nvmlShutdown can hang like any other call.
CLOSE_SECONDS: Final = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Sample until told to end; exit with a nonzero status if a new process must take over."""
    timing = Timing.from_arguments(arguments)
    # Makes a segmentation fault in the driver's library print the call on standard error.
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us.
    end = (sys.stdin.fileno(), _sigterm_as_file())
    node = NodeSampler(timing)
    status = 0
    try:
        _serve(node, _take_stdout(), end, timing.interval_seconds)
    except CallFailed as failure:
        print(f"rankskew: the NVML worker restarts: {failure}", file=sys.stderr, flush=True)
        status = 1
    except NeedsNewProcess:
        status = SUPERSEDED_STATUS
    except BrokenPipeError:
        status = 1  # The parent is gone, so nobody reads a message.
    signal.alarm(CLOSE_SECONDS)  # Without a handler, SIGALRM ends the process.
    node.close()
    os._exit(status)  # A normal exit would wait for threads that hang in the driver.


def _serve(
    node: NodeSampler, output: BinaryIO, end: Sequence[int], interval_seconds: float
) -> None:
    due = time.monotonic()
    while not select.select(end, (), (), max(0.0, due - time.monotonic()))[0]:
        due = max(due + interval_seconds, time.monotonic())  # Never catches up in a burst.
        output.write(node.sample().to_json() + b"\n")
        output.flush()


def _sigterm_as_file() -> int:
    """Return a file descriptor that becomes readable on SIGTERM."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    signal.signal(signal.SIGTERM, lambda *_: None)
    return readable


def _take_stdout() -> BinaryIO:
    """Return standard output, for samples only: what a driver library prints goes to stderr."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return output


if __name__ == "__main__":
    main()
