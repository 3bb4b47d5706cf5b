import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.nvml.calls import CallFailed
from exporter.nvml.worker.events import XidEvents
from tests import nvmlstub
from tests.exporter.nvml.driver import Driver, Fails
from tests.exporter.nvml.stub import (
    PATIENT,
    QUICK,
    Scenario,
    gpus,
    is_stuck_in,
    supervised,
    ups,
    wait_for,
    wait_for_sample,
)

XID, CLOCK = pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventTypeClock


class FakeDriver(Driver):
    """Gives *events*, then timeouts."""

    def __init__(self, *events: tuple[int, int], **answers: Any) -> None:
        super().__init__(
            nvmlDeviceGetSupportedEventTypes=XID,
            nvmlEventSetWait_v2=self.next_event,
        )
        self.answers |= answers
        self.events = list(events)

    def otherwise(self, name: str) -> Any:
        return object()

    def next_event(self, *arguments: object) -> Any:
        if not self.events:
            raise Fails(pynvml.NVML_ERROR_TIMEOUT)
        event_type, data = self.events.pop(0)
        return SimpleNamespace(eventType=event_type, eventData=data)


def count(events: XidEvents) -> int | None:
    counts = events.read()
    return None if counts is None else counts.events


@pytest.mark.parametrize(
    "refusal",
    [
        {"nvmlDeviceGetSupportedEventTypes": CLOCK},
        {"nvmlDeviceGetSupportedEventTypes": Fails()},
        {"nvmlDeviceRegisterEvents": Fails(pynvml.NVML_ERROR_NO_PERMISSION)},
    ],
    ids=["no such event", "not supported", "not allowed"],
)
def test_gpu_without_events_has_no_count_and_is_left_alone(refusal: dict[str, Any]) -> None:
    """What cannot be seen is not 0, and is not read every second."""
    driver = FakeDriver(**refusal)
    events = XidEvents(0, driver, 60.0)
    assert count(events) is None
    driver.asked.clear()

    assert count(events) is None
    assert not driver.asked


def test_events_are_counted_once_and_only_errors() -> None:
    """Every XID that waits in the set is counted; other kinds of events are not."""
    events = XidEvents(0, FakeDriver((XID, 79), (CLOCK, 0), (XID, 31), (XID, 79)), 60.0)

    counts = events.read()
    assert counts is not None
    assert counts.by_kind() == {"79": 2, "31": 1}
    assert count(events) == 3


def test_gpu_that_reports_without_end_does_not_keep_its_thread() -> None:
    """A flood is taken in a part at a time."""
    assert count(XidEvents(0, FakeDriver(*[(XID, 31)] * 300), 60.0)) == 256


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN])
def test_lost_gpu_keeps_its_count_and_is_not_asked_in_a_hurry(code: int) -> None:
    """An error of the wait ends the set; there is another one only after a while."""
    driver = FakeDriver((XID, 79))
    events = XidEvents(0, driver, 60.0)
    events.read()
    driver.fail("nvmlEventSetWait_v2", code=code)
    assert count(events) == 1
    assert driver.asked["nvmlEventSetFree"] == 1
    driver.asked.clear()

    assert count(events) == 1
    assert not driver.asked


def test_gpu_that_comes_back_is_registered_anew() -> None:
    """After the wait, the events of a GPU that was reset continue to count."""
    driver = FakeDriver((XID, 79))
    events = XidEvents(0, driver, retry_seconds=0.0)
    events.read()
    driver.fail("nvmlEventSetWait_v2", code=pynvml.NVML_ERROR_GPU_IS_LOST)
    events.read()
    driver.answers["nvmlEventSetWait_v2"], driver.events = driver.next_event, [(XID, 31)]

    assert count(events) == 2
    assert driver.asked["nvmlEventSetCreate"] == 2


def test_replaced_driver_ends_the_process() -> None:
    """What only a new process can mend is not swallowed here."""
    driver = FakeDriver(nvmlEventSetWait_v2=Fails(pynvml.NVML_ERROR_UNINITIALIZED))

    with pytest.raises(CallFailed):
        XidEvents(0, driver, 60.0).read()


@pytest.fixture
def errors(tmp_path: Path) -> Path:
    """Where the stub finds events; there is an old one."""
    path = tmp_path / "errors"
    path.write_text("0 48\n")
    return path


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_lost_gpu_says_why(library: Path, scenario: Scenario, errors: Path) -> None:
    """The XID that took a GPU off the bus is counted for it alone, and stays while it is down."""
    environment = {**nvmlstub.environment(library, 2, scenario.path), "STUB_EVENTS": str(errors)}
    with supervised(PATIENT, environment) as supervisor:
        wait_for(lambda: [gpu.xid_events for gpu in gpus(supervisor)] == [0, 0])
        append(errors, "1 79\n")
        wait_for(lambda: gpus(supervisor)[1].xid_events == 1)
        scenario.play("* 1 15")
        wait_for(lambda: ups(supervisor) == [True, False])
        well, lost = gpus(supervisor)

    assert (well.xid_events, well.xid_errors) == (0, {})
    assert (lost.xid_events, lost.xid_errors, lost.xid_source) == (1, {"79": 1}, "nvml")
    assert lost.uuid


def test_wait_that_hangs_is_noticed(library: Path, scenario: Scenario, errors: Path) -> None:
    """A wait for events is no stuck call; one that never returns is, and the worker is replaced."""
    environment = {**nvmlstub.environment(library, 2, scenario.path), "STUB_EVENTS": str(errors)}
    with supervised(QUICK, environment) as supervisor:
        wait_for(lambda: [gpu.xid_events for gpu in gpus(supervisor)] == [0, 0])
        append(errors, "0 31\n")
        wait_for(lambda: [gpu.xid_events for gpu in gpus(supervisor)] == [1, 0])
        assert supervisor.worker_restarts == 0
        scenario.play("nvmlEventSetWait_v2 0 hang")
        stuck = wait_for_sample(supervisor, is_stuck_in("nvmlEventSetWait_v2")).stuck_call
        scenario.play()
        wait_for(lambda: supervisor.worker_restarts >= 1)
        wait_for(lambda: [gpu.xid_events for gpu in gpus(supervisor)] == [0, 0])

    assert stuck is not None
    assert stuck.gpu == 0


def test_readable_log_of_the_kernel_is_the_only_source(
    library: Path, scenario: Scenario, errors: Path, tmp_path: Path
) -> None:
    """An error that both the log and NVML's events report is counted once."""
    log = tmp_path / "kmsg"
    log.touch()
    environment = {**nvmlstub.environment(library, 1, scenario.path), "STUB_EVENTS": str(errors)}
    with supervised(replace(PATIENT, path_kmsg=str(log)), environment) as supervisor:
        wait_for(lambda: [gpu.xid_events for gpu in gpus(supervisor)] == [0])
        append(errors, "0 79\n")
        append(log, "3,1,2,-;NVRM: Xid (PCI:0000:10:00): 79, pid=1, GPU has fallen off the bus.\n")
        wait_for(lambda: gpus(supervisor)[0].xid_events != 0)
        before = time.time()
        sample = wait_for_sample(supervisor, lambda one: one.timestamp_seconds > before + 0.2)

    assert (sample.gpus[0].xid_events, sample.gpus[0].xid_source) == (1, "kmsg")
