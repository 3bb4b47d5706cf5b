"""The `rank-probe` command: run a script with its stages timed, or check the set-up.

`torchrun ... -m rank_probe train.py --its --arguments`, or `rank-probe run train.py ...`.
"""

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from rank_probe import api, identity
from rank_probe.push import DEFAULT_ENDPOINT, open_connection
from rank_probe.version import __version__

USAGE = """usage: rank-probe run SCRIPT [ARGUMENT ...]     run a script with its stages timed
       rank-probe run -m MODULE [ARGUMENT ...]  run a module with its stages timed
       rank-probe check                         show this rank, and whether an exporter answers
       rank-probe --version

Under a launcher: torchrun --nproc-per-node 8 -m rank_probe SCRIPT [ARGUMENT ...]
RANK_PROBE=0 turns the probe off; RANKSKEW_EXPORTER sets the address of the exporter."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the `rank-probe` command; return its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    match arguments:
        case ["run", *command] if command:
            run(command)
            return 0
        case ["check"]:
            return check()
        case ["--version"]:
            print(f"rank-probe {__version__}")
            return 0
        case ["-h" | "--help"]:
            print(USAGE)
            return 0
    print(f"rank-probe: expected run, check or --version, got {arguments!r}", file=sys.stderr)
    return 2


def run(command: Sequence[str]) -> None:
    """Run *command*, a script or `-m module` with its arguments, as __main__ under the probe.

    Its exceptions and its exit status pass unchanged.
    """
    module = command[0] == "-m"
    target = list(command[1:] if module else command)
    if not target or (not module and not Path(target[0]).is_file()):
        missing = "-m needs a module" if module else f"no such script: {target[0]!r}"
        print(f"rank-probe: {missing}", file=sys.stderr)
        sys.exit(2)
    sys.argv = target
    api.start(automatic=True)
    try:
        if module:
            sys.path[0] = os.getcwd()
            runpy.run_module(target[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(target[0]).resolve().parent)
            runpy.run_path(target[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            api.abandon()
        raise


def check() -> int:
    """Print this rank's identity and whether the exporter answers; return 1 if it does not."""
    me = identity.from_environment(os.environ)
    if me is None:
        print("rank: not set in the environment (torchrun, SLURM and MPI set it)")
    else:
        print(f"rank: {me.rank} of {me.world_size} in job {me.job_id!r}, attempt {me.attempt}")
    endpoint = os.environ.get("RANKSKEW_EXPORTER") or DEFAULT_ENDPOINT
    try:
        connection = open_connection(endpoint)
        connection.request("GET", "/")
        connection.getresponse().read()
    except (OSError, ValueError) as error:
        print(f"exporter: no answer at {endpoint} ({error}); start one with: rankskew exporter")
        return 1
    connection.close()
    print(f"exporter: answers at {endpoint}")
    return 0


if __name__ == "__main__":
    # `python -m rank_probe train.py` is `rank-probe run train.py`.
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help", "--version"):
        sys.exit(main(sys.argv[1:] or ["--help"]))
    run(sys.argv[1:])
