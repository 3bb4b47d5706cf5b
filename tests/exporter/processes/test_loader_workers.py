"""Workers of a loader are told from whatever else a rank starts."""

from pathlib import Path

import pytest

from exporter.causes.model import ThreadState
from exporter.errors import Failures
from exporter.processes import worker_states
from exporter.processes.worker_states import LateRankProcess, WorkerStates, loader_workers
from tests.exporter.nvml.stub import wait_for

RANK = 10
PROGRAM = b"python\0train.py\0"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    add(tmp_path, RANK, PROGRAM)
    return tmp_path


def add(proc: Path, pid: int, line: bytes, name: bytes = b"python") -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cmdline").write_bytes(line)
    (proc / str(pid) / "comm").write_bytes(name + b"\n")


def test_rank_without_children_has_no_workers(proc: Path) -> None:
    """Nor has one whose children are gone when they are looked at."""
    assert loader_workers(proc, RANK, []) == []
    assert loader_workers(proc, RANK, [11]) == []


def test_workers_have_torchs_name(proc: Path) -> None:
    """A process that the script forked for something else has not."""
    add(proc, 11, PROGRAM)
    add(proc, 12, PROGRAM, b"pt_data_worker")

    assert loader_workers(proc, RANK, [11, 12]) == [12]


@pytest.mark.parametrize(
    ("line", "is_worker"),
    [
        (PROGRAM, True),
        (b"python\0-c\0from multiprocessing.spawn import x\0--multiprocessing-fork\0", True),
        (b"python\0-c\0from multiprocessing.forkserver import main; main(1)\0", True),
        (b"python\0-c\0from multiprocessing.resource_tracker import main\0", False),
        (b"wandb-core\0--port\0", False),
        (b"", False),
    ],
)
def test_workers_of_an_older_torch_run_the_ranks_program(
    proc: Path, line: bytes, is_worker: bool
) -> None:
    """Forked, or started by multiprocessing; helpers that are other programs are not theirs."""
    add(proc, 11, line)

    assert loader_workers(proc, RANK, [11]) == ([11] if is_worker else [])


def test_state_of_workers_is_not_shown_while_every_look_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be that of a time before, for ever."""

    class Rank:
        looks = 99
        fails = False

        def __init__(self, procfs: Path, pid: int) -> None:
            pass

        def look(self, children: object) -> None:
            if Rank.fails:
                raise RecursionError("odd file")

        def busiest(self, loader: str) -> tuple[int, list[ThreadState]]:
            return 88, [ThreadState("data", "disk", 0.5)]

    monkeypatch.setattr(worker_states, "_Rank", Rank)
    monkeypatch.setattr(worker_states, "INTERVAL_SECONDS", 0.001)
    failures = Failures()
    found = WorkerStates(Path("/nowhere"), failures)
    found.follow([LateRankProcess("llama", 3, 7)])
    found.start()
    wait_for(lambda: found.pid("llama", 3) == 88)
    Rank.fails = True
    wait_for(lambda: failures.count > 0)
    gone = found.pid("llama", 3), found.of("llama", 3)
    Rank.fails = False
    wait_for(lambda: found.pid("llama", 3) == 88)
    found.stop()

    assert gone == (None, ())
