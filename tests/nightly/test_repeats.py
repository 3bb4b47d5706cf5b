"""How often a job of real ranks has to run again: what a retry hides shows in ten repeats."""

import re
import subprocess
import sys
from typing import Final

import pytest

from devstack.parts import ROOT
from tests.nightly.figures import full_or_short
from tests.rank_probe.launch import RUN_AGAIN

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(0)]

REPEATS: Final = int(full_or_short(10, 1))
# Of the cases that a retry may save; a shorter run is too short to tell.
MOST_AGAIN: Final = 0.01
JOBS: Final = "jobs and not nightly"  # What each change has to pass.
# In the order of `make test`.
ORDER: Final = ("-n3", "--dist=loadfile", "--no-loadscope-reorder")
PYTEST: Final = (sys.executable, "-m", "pytest", "-q", *ORDER, "-m", JOBS)


def test_one_case_in_a_hundred_runs_again_at_most() -> None:
    """Jobs of real ranks pass each time, and nearly always the first time."""
    passed, again = 0, list[str]()
    for _ in range(REPEATS):
        done = subprocess.run(PYTEST, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        passed += int(re.findall(r"(\d+) passed", done.stdout)[-1])
        again += [line for line in done.stdout.splitlines() if RUN_AGAIN in line]
    print(f"{len(again)} of {passed} ran again", *again, sep="\n")
    assert len(again) <= max(1, MOST_AGAIN * passed), again
