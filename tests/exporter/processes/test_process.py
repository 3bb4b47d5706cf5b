"""A process is read from /proc as far as it can be, and nothing that it holds does harm."""

import os
from pathlib import Path

import pytest

from exporter.ingest.values import LABEL_CHARACTERS
from exporter.processes.process import Proc, as_label, environment
from rank_probe.process.identity import NAMESPACE_FILE
from tests.exporter.fake_proc import TORCHRUN, FakeProc

PID = 4711


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def test_process_that_is_gone_is_none(tmp_path: Path) -> None:
    """No such process, or no proc file system at all, is not an error."""
    assert Proc(tmp_path).process(PID) is None
    assert Proc(tmp_path / "missing").process(PID) is None
    assert Proc(tmp_path / "missing").online_cpus() == frozenset()


def test_all_that_is_needed_is_read(fake: FakeProc) -> None:
    """Name, parents, user, own id, CPUs, launcher's variables and host name are there."""
    fake.add(10, parent=1)
    fake.add(20, parent=10)
    fake.add(
        PID,
        TORCHRUN | {"SECRET_TOKEN": "x"},
        parent=20,
        name="pt) main (1",
        cpus="0-1,8",
        namespace_pids=f"{PID}\t31\t7",
        uts="uts:[2]",
        cgroup="0::/slurm/uid_0/job_5/step_1",
    )
    process = Proc(fake.path).process(PID)

    assert process is not None
    assert (process.name, process.start_ticks, process.uid) == ("pt) main (1", 1000, 1000)
    assert process.ancestors == (20, 10)
    assert process.namespace_pid == 7
    assert process.cpus == frozenset({0, 1, 8})
    assert process.environment == TORCHRUN
    assert process.has_own_hostname is True
    assert process.cgroup.slurm_job_id == "5"


def test_what_cannot_be_read_is_absent(fake: FakeProc) -> None:
    """Without the right to see more, a process still has a name."""
    fake.add(PID)
    fake.hide_environment(PID)
    for name in ("status", "cgroup", "ns/uts"):
        (fake.path / str(PID) / name).unlink()
    process = Proc(fake.path).process(PID)

    assert process is not None
    assert process.name == "python"
    assert (process.environment, process.cpus, process.uid) == (None, None, None)
    assert (process.namespace_pid, process.has_own_hostname) == (None, None)


def test_nothing_below_the_root_of_a_process_is_read(fake: FakeProc) -> None:
    """Who owns the process decides what lies there: a pipe, or a link to another's file."""
    pod = TORCHRUN | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    fake.add(PID, pod)
    file = fake.path / str(PID) / "root" / NAMESPACE_FILE.relative_to("/")
    file.parent.mkdir(parents=True)
    file.write_text("stolen")
    process = Proc(fake.path).process(PID)

    assert process is not None
    assert process.environment == pod


@pytest.mark.parametrize(
    ("hidden", "start", "environment"),
    [
        (False, 1000, TORCHRUN),  # It is read once; what may change is read each time.
        (True, 1000, {"RANK": "0"}),  # A right that is given later is used.
        (False, 2000, {"RANK": "0"}),  # A process id that is used again is another process.
    ],
)
def test_known_process_is_not_asked_for_its_environment_again(
    fake: FakeProc, hidden: bool, start: int, environment: dict[str, str]
) -> None:
    fake.add(PID, TORCHRUN, cpus="0-3", start=1000)
    if hidden:
        fake.hide_environment(PID)
    proc = Proc(fake.path)
    first = proc.process(PID)
    if hidden:
        (fake.path / str(PID) / "environ").rmdir()
    fake.add(PID, {"RANK": "0"}, cpus="2", start=start)
    second = proc.process(PID, first)

    assert second is not None
    assert (second.environment, second.start_ticks) == (environment, start)
    assert second.cpus == frozenset({2})


def test_process_that_is_replaced_while_it_is_read_is_none(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of one process and half of another are neither."""
    fake.add(PID, start=1000)
    monkeypatch.setattr("exporter.cgroups.parse", lambda _: fake.add(PID, TORCHRUN, start=2000))

    assert Proc(fake.path).process(PID) is None


def test_cpus_that_are_off_do_not_count(fake: FakeProc) -> None:
    """An affinity names CPUs that could be plugged in; they are on no NUMA node."""
    fake.add(PID, cpus="0-255")
    proc = Proc(fake.path)
    process = proc.process(PID, online_cpus=proc.online_cpus())

    assert process is not None
    assert process.cpus == frozenset({0, 1, 2, 3})


def test_circle_of_parents_ends(fake: FakeProc) -> None:
    """Processes that are replaced while they are followed cannot hold us up."""
    fake.add(10, parent=20)
    fake.add(20, parent=10)
    process = Proc(fake.path).process(10)

    assert process is not None
    assert len(process.ancestors) == 32


@pytest.mark.parametrize(
    "value", [b"\xff", b"two\nlines", b"\x1b[31m", b"x" * 2000, b"\xe2\x80\xae"]
)
def test_value_that_no_label_may_hold_is_left_out(value: bytes) -> None:
    """Another user's environment reaches neither the page nor a terminal unless it is text."""
    assert environment(b"RANK=1\0RANKSKEW_JOB_ID=" + value + b"\0LOCAL_RANK=2\0") == {
        "RANK": "1",
        "LOCAL_RANK": "2",
    }


@pytest.mark.parametrize("block", [b"", b"\0\0", b"=", b"RANK", b"\xff\xfe\0=\0", b"A=B\0RANKS=1"])
def test_block_that_is_no_environment_is_empty(block: bytes) -> None:
    """A process may write over its own environment."""
    assert set(environment(block).values()) <= {""}


def test_first_of_two_variables_counts() -> None:
    """As for the process itself."""
    assert environment(b"RANK=1\0RANK=2\0") == {"RANK": "1"}


def test_label_is_cut_and_says_so() -> None:
    """A long list of devices costs no more than any label."""
    assert as_label("x" * 128) == "x" * 128
    assert len(as_label("x" * 129)) == LABEL_CHARACTERS
    assert as_label("x" * 129).endswith("x…")


def test_own_process_is_read() -> None:
    """The real /proc of this machine is understood."""
    process = Proc(Path("/proc")).process(os.getpid())

    assert process is not None
    assert process.uid == os.getuid()
    assert process.cpus == frozenset(os.sched_getaffinity(0))
    assert os.getppid() in (*process.ancestors, 0, 1)
    assert process.environment is not None
