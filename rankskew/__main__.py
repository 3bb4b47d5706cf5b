"""`rankskew` and `python -m rankskew`: run a command; what stops it is one line on stderr."""

import os
import sys
from collections.abc import Sequence

from exporter.errors import StartError, UsageError
from rankskew.cli import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when the command did its work, 1 when the machine refused, 2 for wrong usage."""
    try:
        status = run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return status
    except (UsageError, StartError) as error:
        return _end(error.status, str(error))
    except BrokenPipeError:
        # The reader has seen enough, as head does. Python flushes stdout once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _end(status: int, message: str) -> int:
    print(f"rankskew: {' '.join(message.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
