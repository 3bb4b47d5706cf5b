"""A process, its children and its use are read from /proc as far as they can be."""

import os
from pathlib import Path

import pytest

from exporter.ingest.values import LABEL_CHARACTERS
from exporter.processes import children
from exporter.processes.children import LOOKS_BEFORE_READ_AGAIN, Children, family
from exporter.processes.process import Proc, as_label, environment
from exporter.processes.usage import Usage, Work, stat, usage
from rank_probe.process.identity import NAMESPACE_FILE
from tests.exporter.fake_proc import TORCHRUN, FakeProc

PID = 4711


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def test_process_that_is_gone_is_none(tmp_path: Path) -> None:
    """No such process, or no proc file system at all, is not an error."""
    for procfs in (tmp_path, tmp_path / "missing"):
        assert Proc(procfs).process(PID) is None
        assert Proc(procfs).online_cpus() == frozenset()
        assert usage(procfs, PID) is None
        assert Children(procfs).look() == {}


def test_all_that_is_needed_is_read(fake: FakeProc) -> None:
    """Name, parents, user, own id, CPUs, launcher's variables and host name are there."""
    fake.add(10, parent=1)
    fake.add(20, parent=10)
    fake.add(
        PID,
        TORCHRUN | {"SECRET_TOKEN": "x"},
        parent=20,
        name="pt) main (1",
        cpus="0-1,3-255",
        namespace_pids=f"{PID}\t31\t7",
        uts="uts:[2]",
        cgroup="0::/slurm/uid_0/job_5/step_1",
    )
    proc = Proc(fake.path)
    process = proc.process(PID, online_cpus=proc.online_cpus())

    assert process is not None
    assert (process.name, process.start_ticks, process.uid) == ("pt) main (1", 1000, 1000)
    assert process.ancestors == (20, 10)
    assert process.namespace_pid == 7
    assert process.cpus == frozenset({0, 1, 3})  # An affinity may name CPUs that are off.
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


def test_circle_of_parents_ends(fake: FakeProc) -> None:
    """Processes that are replaced while they are followed cannot hold us up."""
    fake.add(10, parent=20)
    fake.add(20, parent=10)
    process = Proc(fake.path).process(10)

    assert process is not None
    assert len(process.ancestors) == 32
    assert family(10, Children(fake.path).look(), frozenset()) == {10: 0, 20: 10}


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


def test_label_is_cut_and_says_so() -> None:
    """A long list of devices costs no more than any label."""
    assert as_label("x" * 128) == "x" * 128
    assert len(as_label("x" * 129)) == LABEL_CHARACTERS
    assert as_label("x" * 129).endswith("x…")


def test_own_process_is_read() -> None:
    """The real /proc of this machine is understood."""
    process, used = Proc(Path("/proc")).process(os.getpid()), usage(Path("/proc"), os.getpid())

    assert process is not None
    assert used is not None
    assert process.uid == os.getuid()
    assert process.cpus == frozenset(os.sched_getaffinity(0))
    assert os.getppid() in (*process.ancestors, 0, 1)
    assert process.environment is not None
    assert used.parent_pid == os.getppid()
    assert used.own.cpu_ticks > 0
    assert used.read_bytes is not None


def test_all_use_is_read(fake: FakeProc) -> None:
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


def test_descendants_are_found_but_not_other_ranks(fake: FakeProc) -> None:
    """Children and their children, parents first, without another rank and what it started."""
    for pid, parent in ((10, 1), (11, 10), (12, 11), (20, 10), (21, 20), (30, 1)):
        fake.use(pid, parent=parent)
    found = Children(fake.path).look()

    assert family(10, found, frozenset({20})) == {10: 0, 11: 10, 12: 11}
    assert family(20, found, frozenset({10})) == {20: 0, 21: 20}


def test_known_process_is_not_read_again(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look at thousands of processes lists them, and reads only the new ones."""
    read: list[int] = []

    def counted(procfs: Path, pid: int) -> Usage | None:
        read.append(pid)
        return stat(procfs, pid)

    monkeypatch.setattr(children, "stat", counted)
    for pid in range(21, 39):
        fake.use(pid)
    looks = Children(fake.path)
    looks.look()
    read.clear()
    fake.use(40)
    looks.look()

    assert read == [40, 22]  # The new one, and one whose turn it is.


def test_process_id_that_was_reused_is_noticed(fake: FakeProc) -> None:
    """After some looks every parent is read again."""
    fake.use(10, parent=1)
    looks = Children(fake.path)
    looks.look()
    fake.use(10, parent=7)
    found = [looks.look() for _ in range(LOOKS_BEFORE_READ_AGAIN)]

    assert 7 not in found[0]
    assert found[-1] == {0: [1], 7: [10]}


def test_reading_is_bounded(fake: FakeProc) -> None:
    """Of thousands of new processes, some are read now and the others at the next looks."""
    for pid in range(10, 30):
        fake.use(pid, parent=5)
    looks = Children(fake.path, most_read=15)

    assert len(looks.look().get(5, ())) < 20
    assert len(looks.look()[5]) == 20
