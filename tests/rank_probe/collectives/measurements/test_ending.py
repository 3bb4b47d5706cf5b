"""A rank that cannot go on says so once, and never hangs."""

import signal
import subprocess
import sys
import time

import pytest

from tests.exporter.running import ROOT

STUCK = """
import sys, time
from rank_probe.collectives.measurements.ending import Watchdog
watchdog = Watchdog(3, float(sys.argv[1]))
watchdog.claim = lambda: sys.argv[2] == "first"
with watchdog.watching():
    watchdog.says("the exchange between ranks 3 and 5")
    print("stuck", flush=True)
    time.sleep(60)
"""


def stuck(patience: str, place: str = "first") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", STUCK, patience, place]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_step_that_takes_too_long_ends_the_rank() -> None:
    """With what it was doing, and status 2."""
    process = stuck("0.3")
    _, errors = process.communicate(timeout=20)

    assert errors == (
        "rank-probe: rank 3 waited 0 s in vain during the exchange between ranks 3 and 5: a rank "
        "has ended or hangs, or a link is down; for slow links raise --timeout\n"
    )
    assert process.returncode == 2


def test_only_the_first_rank_says_why() -> None:
    """One sentence for all of them."""
    process = stuck("0.3", "second")
    _, errors = process.communicate(timeout=20)

    assert (errors, process.returncode) == ("", 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_rank_at_once(number: signal.Signals) -> None:
    """Also while the main thread is blocked in a call that no handler interrupts."""
    process = stuck("60")
    assert process.stdout is not None
    process.stdout.readline()
    began = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)

    assert errors.startswith(f"rank-probe: rank 3 was ended by {number.name} during the exchange")
    assert process.returncode == 2
    assert time.monotonic() - began < 10
