"""What a process has used is read from /proc as far as it can be, in bounded time."""

import os
from pathlib import Path

import pytest

from exporter.processes.usage import Work, stat, usage
from tests.exporter.fake_proc import FakeProc

PID = 4711


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def test_process_that_is_gone_has_no_usage(tmp_path: Path) -> None:
    """No such process, or no proc file system at all, is not an error."""
    assert usage(tmp_path, PID) is None
    assert usage(tmp_path / "missing", PID) is None


def test_all_that_is_needed_is_read(fake: FakeProc) -> None:
    """CPU time, faults, bytes and the run queue, of itself and of its ended children."""
    fake.use(
        PID,
        parent=3,
        cpu=7,
        ended_cpu=5,
        faults=2,
        ended_faults=1,
        read=4096,
        run_queue=9_000,
    )
    found = usage(fake.path, PID)

    assert found is not None
    assert (found.start_ticks, found.parent_pid, found.is_zombie) == (1000, 3, False)
    assert (found.own, found.ended) == (Work(7, 2), Work(5, 1))
    assert (found.read_bytes, found.run_queue_nanoseconds) == (4096, 9_000)
    assert found.running_nanoseconds == 77  # What FakeProc writes.


@pytest.mark.parametrize("text", ["", "4711 (x", "4711 (x) S 1", "4711 (x) S " + "x " * 50])
def test_file_that_is_no_stat_is_no_process(fake: FakeProc, text: str) -> None:
    """Whatever a kernel or a sandbox writes there, nothing is raised."""
    fake.use(PID)
    (fake.path / str(PID) / "stat").write_text(text)

    assert usage(fake.path, PID) is None


# Three zeros are what a kernel without scheduler statistics writes.
@pytest.mark.parametrize(
    "text", [None, "0 0 0\n", "", "read_bytes: x\nwrite_bytes: 1\n", "a\n" * 9_999]
)
def test_files_that_are_missing_or_nonsense_are_no_reading(
    fake: FakeProc, text: str | None
) -> None:
    """One odd file, or one that we may not read, costs one reading: the CPU time is there."""
    fake.use(PID, cpu=7)
    for name in ("io", "schedstat"):
        if text is not None:
            (fake.path / str(PID) / name).write_text(text)
    found = usage(fake.path, PID)

    assert found is not None
    assert found.own == Work(7, 0)
    assert (found.read_bytes, found.run_queue_nanoseconds) == (None, None)


def test_zombie_is_known(fake: FakeProc) -> None:
    """A process that has ended, and that nobody has waited for, still has its numbers."""
    fake.use(PID, state="Z", cpu=7)
    found = stat(fake.path, PID)

    assert found is not None
    assert (found.is_zombie, found.own.cpu_ticks) == (True, 7)


def test_this_process_is_readable() -> None:
    """The format is the kernel's own."""
    found = usage(Path("/proc"), os.getpid())

    assert found is not None
    assert found.parent_pid == os.getppid()
    assert found.own.cpu_ticks > 0
    assert found.read_bytes is not None
