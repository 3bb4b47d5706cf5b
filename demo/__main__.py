"""`make demo`: plant a straggler, wait until it is named, and print one line about it."""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from demo import page_only, paged
from demo.scenario import FAULTS, Scenario
from devstack.parts import ALERTMANAGER, PROMETHEUS
from devstack.process import StackError, missing_programs

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Somebody wants to end the demo; like KeyboardInterrupt, but with the signal's number."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number


def interrupt(signal_number: int, frame: FrameType | None) -> None:
    """Unwind once, so that everything is stopped; a second Ctrl-C must not cut that short."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(signal_number)


def main() -> int:
    """Run the demo; return its exit status."""
    fault = os.environ.get("DEMO_FAULT") or "data"
    if fault not in FAULTS:
        print(f"DEMO_FAULT={fault} is not one of {', '.join(FAULTS)}", file=sys.stderr)
        return 2
    # Without a terminal nobody can press Ctrl-C.
    once = os.environ.get("DEMO_ONCE", "") not in ("", "0") or not sys.stdout.isatty()
    for each in SIGNALS:
        signal.signal(each, interrupt)
    scenario = Scenario(fault, once)
    directory = Path(tempfile.mkdtemp(prefix="rankskew-demo-"))
    try:
        return run(scenario, directory)
    except StackError as error:
        print(f"\ndemo failed: {error}\nlogs and data: {directory}", file=sys.stderr)
        return 1
    except Interrupted as interrupted:
        shutil.rmtree(directory)
        print("\nStopped; nothing is left running.")
        return 0 if scenario.concluded else 128 + interrupted.signal_number


def run(scenario: Scenario, directory: Path) -> int:
    """Run *scenario* with everything installed; return 0, or 1 if the verdict is wrong."""
    missing = missing_programs(PROMETHEUS, ALERTMANAGER)
    if missing:
        print(
            f"Not installed: {' and '.join(missing)}. To see the rules and the alert as well:\n"
            f"    sudo apt-get install {' '.join(missing)}\n"
            "Without them the demo shows only the exporter and its built-in page.\n"
        )
    demonstrate = page_only.demonstrate if missing else paged.demonstrate
    wrong = demonstrate(scenario, directory)
    shutil.rmtree(directory)
    if wrong:
        print(f"demo failed: {wrong}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
