"""The listed processes are looked up now and then; the log warns once if they are hidden."""

import logging
from pathlib import Path

import pytest

from exporter.errors import Failures
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes.background import WatchHangs
from exporter.processes.process import Proc
from exporter.processes.watch import NOT_READABLE, NOT_THERE, ProcessWatch
from tests.exporter.fake_proc import TORCHRUN, FakeProc
from tests.exporter.nvml.fixed import NO_DRIVER, NO_SAMPLE, FixedNvml, node
from tests.exporter.nvml.stub import wait_for


def gpus_with(*pids: int) -> FixedNvml:
    """Two GPUs, the second of which cannot tell, the first with *pids*."""
    listed = tuple(GpuProcess(pid) for pid in pids)
    return node(GpuSample(0, up=True, processes=listed), GpuSample(1, up=True))


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


@pytest.mark.parametrize("nvml", [NO_DRIVER, NO_SAMPLE, gpus_with()])
def test_node_where_nothing_runs_on_a_gpu_is_not_looked_at(
    fake: FakeProc, nvml: FixedNvml, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a list of NVML's no process is read, whatever runs, and nothing is amiss."""
    fake.add(7, TORCHRUN)
    watch = ProcessWatch(nvml, Proc(fake.path))
    for _ in range(5):
        watch.look()

    assert watch.processes() == {}
    assert caplog.messages == []


def test_listed_processes_are_found_and_remembered(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are gone or not listed are not there. An environment is read at the first look.

    Reading one may have to wait for its process, so not even an NVML that does not answer, as while
    its worker is new or hangs, makes each be read again.
    """
    for pid in (7, 8, 9):
        fake.add(pid, TORCHRUN)
    watch = ProcessWatch(gpus_with(7, 8, 404), Proc(fake.path))
    watch.look()
    assert set(watch.processes()) == {7, 8}
    fake.set_environment(7, {"RANK": "0"})
    watch.look()
    monkeypatch.setattr(watch, "_nvml", NO_SAMPLE)
    (fake.path / "8" / "stat").unlink()
    watch.look()

    assert set(watch.processes()) == {7}
    assert watch.processes()[7].environment == TORCHRUN


def test_exporter_that_sees_no_process_is_told_once(
    fake: FakeProc, caplog: pytest.LogCaptureFixture
) -> None:
    """In a container without the node's process namespace the log says what to do, once."""
    watch = ProcessWatch(gpus_with(404, 405), Proc(fake.path))
    watch.look()
    watch.look()
    before = list(caplog.messages)
    for _ in range(3):
        watch.look()
    fake.add(404)
    watch.look()
    (fake.path / "404" / "stat").unlink()
    for _ in range(5):
        watch.look()

    assert before == []
    assert caplog.messages == [NOT_THERE]


def test_exporter_that_may_read_no_environment_is_told_once(
    fake: FakeProc, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the right to read other users' processes the log says what to do, once."""
    fake.add(7)
    fake.hide_environment(7)
    watch = ProcessWatch(gpus_with(7), Proc(fake.path))
    for _ in range(10):
        watch.look()

    assert caplog.messages == [NOT_READABLE]


def test_processes_that_end_before_the_look_are_no_reason_to_warn(
    fake: FakeProc, caplog: pytest.LogCaptureFixture
) -> None:
    """A list that is a little old is usual."""
    nvml = gpus_with(7)
    watch = ProcessWatch(nvml, Proc(fake.path))
    for _ in range(3):
        watch.look()
        watch.look()
        fake.add(7, TORCHRUN)
        watch.look()
        (fake.path / "7" / "stat").unlink()

    assert caplog.messages == []


def test_nothing_of_an_environment_is_logged(
    fake: FakeProc, caplog: pytest.LogCaptureFixture
) -> None:
    """Passwords stay where they are, at any level of the log."""
    caplog.set_level(logging.DEBUG)
    fake.add(7, {"RANK": "0", "AWS_SECRET_ACCESS_KEY": "hunter2"})
    watch = ProcessWatch(gpus_with(7), Proc(fake.path))
    watch.look()

    assert "hunter2" not in caplog.text + repr(watch.processes())


def test_look_that_does_not_return_is_an_error(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old processes are not shown for new ones while reading /proc hangs."""
    now = [100.0]
    watch = ProcessWatch(gpus_with(7), Proc(fake.path), clock=lambda: now[0])
    monkeypatch.setattr(watch, "look", lambda: None)
    watch.start()
    now[0] += 29
    assert watch.processes() == {}
    now[0] += 2
    try:
        with pytest.raises(WatchHangs):
            watch.processes()
    finally:
        watch.stop()


def test_look_that_fails_is_not_the_last_one_and_no_hang(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One odd file costs the looks that meet it, and is what people read as the reason."""

    def odd(self: Proc) -> frozenset[int]:
        raise RecursionError("odd file")

    fake.add(7, TORCHRUN)
    now, failures = [100.0], Failures()
    watch = ProcessWatch(gpus_with(7), Proc(fake.path), 0.01, lambda: now[0], failures)
    with monkeypatch.context() as patch:
        patch.setattr(Proc, "online_cpus", odd)
        watch.start()
        wait_for(lambda: failures.count > 2)
        now[0] += 31
        with pytest.raises(WatchHangs, match=r"every look fails: RecursionError\('odd file'\)"):
            watch.processes()
    wait_for(lambda: "rankskew-process-watch" not in failures.last)
    found = watch.processes()
    watch.stop()

    assert set(found) == {7}
    assert caplog.messages == [
        "rankskew-process-watch failed, and goes on: RecursionError: odd file"
    ]


def test_watch_looks_by_itself_until_it_is_stopped(fake: FakeProc) -> None:
    """Between start and stop a new process is found without being asked for."""
    watch = ProcessWatch(gpus_with(7), Proc(fake.path), interval_seconds=0.01)
    watch.start()
    fake.add(7, TORCHRUN)
    wait_for(lambda: 7 in watch.processes())
    watch.stop()

    thread = watch._thread
    assert thread is not None
    wait_for(lambda: not thread.is_alive())
