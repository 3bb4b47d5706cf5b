"""The `rank-probe` command: run a script with its stages timed, or check the set-up and links.

`torchrun ... -m rank_probe train.py --its --arguments`, or `rank-probe train.py ...`.
"""

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from rank_probe import api
from rank_probe.command_line.grammar import USAGE, Invocation, WrongCommand, parse
from rank_probe.process import relaunch
from rank_probe.version import __version__


def main(words: Sequence[str] | None = None) -> int:
    """Run the command in *words*, by default the process's arguments; return the exit status."""
    try:
        command = parse(sys.argv[1:] if words is None else words)
        if command.action == "check":
            # Imported here: a training job waits for every import of this module.
            from rank_probe import check

            return check.run(command.arguments)
        if command.action == "audit":
            from rank_probe.audit import command as audit_command

            return audit_command.run(command.arguments)
        if command.action == "bench-collectives":
            from rank_probe.collectives import command as bench_command

            return bench_command.run(command.arguments)
    except WrongCommand as wrong:
        print(f"rank-probe: {wrong}; see {wrong.help}", file=sys.stderr)
        return 2
    except Exception:  # noqa: BLE001 - Python's own status would say that something was found.
        import traceback

        traceback.print_exc()
        return 2
    match command.action:
        case "run":
            run(command)
        case "help":
            print(USAGE)
        case "version":
            print(f"rank-probe {__version__}")
    return 0


def run(command: Invocation) -> None:
    """Run the script or module of *command* as __main__ under the probe.

    Its exceptions and its exit status pass unchanged.
    """
    sys.argv = [command.target, *command.arguments]
    # Start first: the probe's imports must not come from the script's folder.
    api.start(automatic=True)
    if api.running():
        relaunch.attach()
    try:
        if command.is_module:
            _put_first_on_path(os.getcwd())
            runpy.run_module(command.target, run_name="__main__", alter_sys=True)
        else:
            _put_first_on_path(str(Path(command.target).resolve().parent))
            runpy.run_path(command.target, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            api.abandon()
        raise


def _put_first_on_path(folder: str) -> None:
    """Replace the first path entry, which Python set for us; with PYTHONSAFEPATH it sets none."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


if __name__ == "__main__":
    status = main()
    if status:  # A script that reached its end has ended nothing else.
        sys.exit(status)
