"""In each way to train, and by the join of a torchrun job, late rank and stage are named."""

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from devstack.process import free_port
from tests.rank_probe.launch import ATTEMPTS, run
from tests.rank_probe.ways import ARMS, Arm, measure

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3000)]

LATE: Final = "rank 2 in data"
JOB: Final = (
    *("-m", "torch.distributed.run", "--nproc-per-node=4", "-m", "rank_probe", "demo/train.py"),
    *("--fault", "data", "--fault-rank", "2"),
    *("--seconds", "45", "--step-seconds", "0.1", "--delay", "0.08"),
)
# What a job that failed said last of its own error.
ERROR: Final = re.compile(r"^(?:\[rank\d+\]: ?)?(\w*(?:Error|Exception): .+)$", re.MULTILINE)

# Returns what was named in place of the late rank; raises what launch.run() does.
Case = Callable[[], list[str]]


def check(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if *case* names a wrong rank or stage in every attempt; a busy machine may cause one.

    A case that does not run without the probe either is skipped.
    """
    wrong: list[str] = []
    for _ in range(ATTEMPTS):
        monkeypatch.setenv("PET_MASTER_PORT", str(free_port()))  # An option of torchrun.
        try:
            wrong = case()
        except (AssertionError, KeyError, subprocess.TimeoutExpired) as error:
            said = ERROR.findall(str(error)) or [str(error).splitlines()[-1]]
            if not isinstance(error, KeyError) and not runs_without_probe(case, monkeypatch):
                pytest.skip(f"does not run, nor without the probe: {said[0][:200]}")
            wrong = [f"does not run: {said[0][:200]}"]
        if not wrong:
            return
    pytest.fail("; ".join(wrong), pytrace=False)


def runs_without_probe(case: Case, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether the ranks of *case* train to their end with the probe off."""
    with monkeypatch.context() as off:
        off.setenv("RANK_PROBE", "0")
        try:
            case()
        except KeyError:  # They have reported nothing.
            return True
        except (AssertionError, subprocess.TimeoutExpired):
            return False
    raise RuntimeError("ranks reported with the probe off")


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_way(arm: Arm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delay in each stage in turn is seen in that stage of that rank."""

    def case() -> list[str]:
        missed = [found for found in measure(arm) if not found["named"]]
        return [
            f"{each['in']}: rank {each['waits least']} in {each['furthest ahead in']}"
            for each in missed
        ]

    check(case, monkeypatch)


def test_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict that each rank has from the join names who is late."""

    def case() -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            ranks = run(Path(folder), JOB, RANKSKEW_JOB_ID="late")["late"]
        return [name for name in map(named, ranks.values()) if name != LATE]

    check(case, monkeypatch)


def named(snapshot: dict[str, Any]) -> str:
    """Return whom the verdict of *snapshot* names."""
    verdict = snapshot["verdict"] or {"late": [], "reason": "no verdict"}
    late = (f"rank {each['rank']} in {each['stage']}" for each in verdict["late"])
    return ", ".join(late) or verdict["reason"] or "nobody"
