"""A rank that cannot go on says so, and never hangs."""

import subprocess
import sys

from tests.exporter.running import ROOT

STUCK = """
import sys, time
from rank_probe.collectives.world import Watchdog
watchdog = Watchdog(3, float(sys.argv[1]))
with watchdog.watching():
    watchdog.says("the exchange between ranks 3 and 5")
    print("stuck", flush=True)
    time.sleep(60)
"""


def stuck(patience: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", STUCK, patience]
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
