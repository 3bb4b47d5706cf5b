"""Processes and ranks are looked at now and then; what one hides costs the others nothing."""

import logging
from pathlib import Path
from typing import Any

import pytest

from exporter.errors import Failures
from exporter.listeners.peer import Peer
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes import host_watch
from exporter.processes.background import WatchHangs
from exporter.processes.host_watch import Followed, HostWatch
from exporter.processes.process import Proc
from exporter.processes.watch import NOT_READABLE, NOT_THERE, ProcessWatch
from exporter.ranks.store import HeldRank
from tests.exporter.fake_proc import TORCHRUN, FakeProc, process, torchrun
from tests.exporter.node import NO_DRIVER, NO_SAMPLE, Clock, FixedNvml, node
from tests.exporter.running import wait_until
from tests.exporter.snapshots import snapshot


def gpus_with(*pids: int) -> FixedNvml:
    """Two GPUs, the second of which cannot tell, the first with *pids*."""
    listed = tuple(GpuProcess(pid) for pid in pids)
    return node(GpuSample(0, up=True, processes=listed), GpuSample(1, up=True))


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def test_listed_processes_are_found_and_remembered(
    fake: FakeProc, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that are gone or not listed are not there. An environment is read at the first look.

    Reading one may have to wait for its process, so not even an NVML that does not answer, as while
    its worker is new or hangs, makes each be read again. Passwords stay where they are.
    """
    caplog.set_level(logging.DEBUG)
    for pid in (7, 8, 9):
        fake.add(pid, TORCHRUN | {"AWS_SECRET_ACCESS_KEY": "hunter2"})
    nvml = gpus_with(7, 8, 404)
    watch = ProcessWatch(nvml, Proc(fake.path))
    watch.look()
    assert set(watch.processes()) == {7, 8}
    fake.set_environment(7, {"RANK": "0"})
    watch.look()
    nvml.sample = None
    (fake.path / "8" / "stat").unlink()
    watch.look()

    assert set(watch.processes()) == {7}
    assert watch.processes()[7].environment == TORCHRUN
    assert "hunter2" not in caplog.text


# What each look finds: nothing, a process, or one of which the environment is hidden. A list that
# is a little old is usual, so three looks are waited for.
@pytest.mark.parametrize(
    ("nvml", "looks", "said"),
    [
        (gpus_with(7, 405), ["", ""], []),
        (gpus_with(7, 405), ["", "", "", "", "", "seen", "", "", "", ""], [NOT_THERE]),
        (gpus_with(7, 405), ["hidden"] * 10, [NOT_READABLE]),
        (gpus_with(7, 405), ["", "", "seen"] * 3, []),
        # Without a list of NVML's no process is read, whatever runs, and nothing is amiss.
        *((nvml, ["hidden"] * 5, []) for nvml in (NO_DRIVER, NO_SAMPLE, gpus_with())),
    ],
)
def test_exporter_that_sees_nothing_is_told_once(
    fake: FakeProc,
    caplog: pytest.LogCaptureFixture,
    nvml: FixedNvml,
    looks: list[str],
    said: list[str],
) -> None:
    """In a container without the node's process namespace, or without the right to read others."""
    watch = ProcessWatch(nvml, Proc(fake.path))
    for found in looks:
        if found:
            fake.add(7, TORCHRUN)
        if found == "hidden":
            fake.hide_environment(7)
        watch.look()
        if found:
            fake.end(7)

    assert caplog.messages == said


def test_look_that_does_not_return_is_an_error(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is old is not shown for new while reading /proc hangs."""
    clock = Clock()
    watch = HostWatch(fake.path, fake.path, clock=clock)
    monkeypatch.setattr(watch, "look", lambda: None)
    watch.start()
    clock.seconds += 59.0
    assert watch.latest() is None
    clock.seconds += 2.0
    with pytest.raises(WatchHangs, match="the cgroup of a rank hangs"):
        watch.latest()
    watch.stop()


def test_look_that_fails_is_not_the_last_one_and_no_hang(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One odd file costs the looks that meet it, and is what people read as the reason."""

    def odd(self: Proc) -> frozenset[int]:
        raise RecursionError("odd file")

    fake.add(7, TORCHRUN)
    monkeypatch.setattr("exporter.processes.watch.INTERVAL_SECONDS", 0.01)
    clock, failures = Clock(), Failures()
    watch = ProcessWatch(gpus_with(7), Proc(fake.path), clock, failures)
    with monkeypatch.context() as patch:
        patch.setattr(Proc, "online_cpus", odd)
        watch.start()
        wait_until(lambda: failures.count > 2)
        clock.seconds += 31
        with pytest.raises(WatchHangs, match=r"every look fails: RecursionError\('odd file'\)"):
            watch.processes()
    wait_until(lambda: "rankskew-process-watch" not in failures.last)
    found = watch.processes()
    watch.stop()

    assert set(found) == {7}
    assert caplog.messages == [
        "rankskew-process-watch failed, and goes on: RecursionError: odd file"
    ]


WHO = ("llama", "all", "0")
PID = 4711
USER = Peer(1000)


def watching(fake: FakeProc, *ranks: Followed) -> HostWatch:
    watch = HostWatch(fake.path, fake.path.parent / "sys")
    watch.follow(ranks)
    return watch


def on_gpu(rank: int, pid: int, start: int = 1000) -> Followed:
    return Followed(("llama", "all", str(rank)), process(pid, start_ticks=start))


def cpu(watch: HostWatch) -> dict[str, int]:
    """Return the CPU ticks of each rank and its workers at a look."""
    watch.look()
    look = watch.latest()
    costs = {} if look is None else look.costs
    return {who[2]: c.used.cpu_ticks + c.used.workers_cpu_ticks for who, c in costs.items()}


def test_each_rank_has_its_own_workers(fake: FakeProc) -> None:
    """A rank that another one started is not that one's worker; one that has ended has no cost.

    The counters of a process that restarts are its own, which Prometheus knows as a reset.
    """
    fake.use(10, cpu=1)
    fake.use(11, parent=10, cpu=2)
    fake.use(20, parent=10, cpu=4)
    fake.use(21, parent=20, cpu=8)
    watch = watching(fake, on_gpu(0, 10), on_gpu(1, 20), on_gpu(2, 30))
    assert cpu(watch) == {"0": 3, "1": 12}

    fake.use(20, start=2000, cpu=3)
    assert cpu(watch) == {"0": 3}
    watch.follow([on_gpu(1, 20, start=2000)])
    assert cpu(watch) == {"1": 11}


def test_limit_is_shared_and_what_it_leaves_out_is_counted(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank with thousands of workers takes nothing from its neighbour."""
    monkeypatch.setattr(host_watch, "MOST_PROCESSES", 10)
    fake.use(10, cpu=1)
    fake.use(20, cpu=1)
    for pid in range(100, 200):
        fake.use(pid, parent=10, cpu=1)
    fake.use(21, parent=20, cpu=1)
    watch = watching(fake, on_gpu(0, 10), on_gpu(1, 20))

    assert cpu(watch) == {"0": 5, "1": 2}
    look = watch.latest()
    assert look is not None
    assert look.left_out == 101 - 5


@pytest.mark.parametrize(
    ("environment", "owner", "changes", "is_believed"),
    [
        (torchrun(0), USER, {}, True),
        (torchrun(0), Peer(1001), {}, False),
        (torchrun(0), Peer(1000, "other"), {}, False),
        (torchrun(1), USER, {}, False),
        (torchrun(0), USER, {"namespace_pids": f"{PID}\t7"}, False),
        # Over TCP only its launcher's variables prove it.
        (torchrun(0), None, {}, True),
        ({}, None, {}, False),
        (torchrun(1), None, {}, False),
        (torchrun(0, TORCHELASTIC_RUN_ID="other"), None, {}, False),
    ],
)
def test_rank_without_a_gpu_is_found_by_the_id_that_it_reports(
    fake: FakeProc,
    environment: dict[str, str],
    owner: Peer | None,
    changes: dict[str, Any],
    is_believed: bool,
) -> None:
    """A job on CPUs has costs too. A process that may be another is not believed to be the rank:
    an id means something else in another namespace, and anyone can report anyone's.
    """
    fake.add(PID, environment, **changes)
    stat = (fake.path / str(PID) / "stat").read_text().split()
    stat[13] = "7"
    (fake.path / str(PID) / "stat").write_text(" ".join(stat))
    reported = Followed(WHO, held=HeldRank(snapshot(pid=PID), 0.0, owner))
    assert cpu(watching(fake, reported)) == ({"0": 7} if is_believed else {})

    fake.hide_environment(PID)
    assert cpu(watching(fake, reported)) == {}


def test_watch_hurries_while_a_rank_is_late(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: it does not wait for the end of its usual interval first."""
    monkeypatch.setattr(host_watch, "HURRIED_SECONDS", 0.01)
    monkeypatch.setattr(host_watch, "INTERVAL_SECONDS", 600.0)
    watch = watching(fake, on_gpu(0, 10))
    watch.start()
    wait_until(lambda: watch.latest() is not None)  # It has found nobody.
    fake.use(10)
    fake.use(20)
    try:
        watch.hurry(True)
        wait_until(lambda: pids(watch) == [10])
        watch.follow([on_gpu(0, 20)])
        wait_until(lambda: pids(watch) == [20])
    finally:
        watch.stop()


def pids(watch: HostWatch) -> list[int]:
    look = watch.latest()
    return [] if look is None else [cost.pid for cost in look.costs.values()]
