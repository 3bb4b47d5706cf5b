"""`rankskew` and `python -m rankskew`: run a command; what stops it is one line on stderr."""

import io
import os
import sys
import traceback
from collections.abc import Sequence

from exporter.errors import FAILED, StartError, UsageError
from rank_probe.wire.text import printable
from rankskew.cli import run

INTERRUPTED = 130  # 128 + SIGINT, as in a shell


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when nothing was found, 1 when something was, 2 when a command cannot tell.

    2 also stands for wrong usage, for what the machine refuses, and for a bug of ours.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # A terminal need not have every character.
    try:
        status = run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return status
    except (UsageError, StartError) as error:
        return _end(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe, as head does. Python flushes stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception:  # noqa: BLE001 - Python's own status would say that something was found.
        traceback.print_exc()
        return FAILED


def _end(message: str) -> int:
    print(printable(f"rankskew: {' '.join(message.split())}"), file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
