"""XID errors: from NVML's events, and from the kernel's log where that can be read."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.nvml.calls import CallFailed
from exporter.nvml.worker.events import XidEvents
from exporter.nvml.worker.kmsg import Kmsg, open_kmsg
from exporter.nvml.worker.xids import XidCounts
from tests.exporter.clock import Clock
from tests.exporter.nvml.driver import Driver, Fails
from tests.exporter.nvml.stub import (
    PATIENT,
    Scenario,
    Supervise,
    gpus,
    ups,
    wait_for_sample,
)
from tests.exporter.running import wait_until


# Each name is a series: a fourth kind counts without one, the known ones continue. A program that
# fails in many ways leaves names for what breaks next.
@pytest.mark.parametrize(
    ("kinds", "named"),
    [
        ([], {}),
        ([48, 63, 79, 119, 48], {"48": 2, "63": 1, "79": 1}),
        ([31, 13, 43, 45, 13, 31, 79, 74], {"31": 2, "79": 1, "74": 1}),
    ],
)
def test_kinds_have_a_bound_and_events_do_not(kinds: list[int], named: dict[str, int]) -> None:
    counts = XidCounts()
    for kind in kinds:
        counts.add(kind)

    assert (counts.events, counts.by_kind()) == (len(kinds), named)


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
def test_gpu_that_comes_back_is_registered_anew(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """An error ends the set, and keeps the count; a GPU that was reset counts on after a while."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    driver = FakeDriver((XID, 79))
    events = XidEvents(0, driver, retry_seconds=60.0)
    events.read()
    driver.fail("nvmlEventSetWait_v2", code=code)
    assert count(events) == 1
    assert driver.asked["nvmlEventSetFree"] == 1
    driver.answers["nvmlEventSetWait_v2"], driver.events = driver.next_event, [(XID, 31)]
    clock.seconds += 59.0
    assert count(events) == 1
    clock.seconds += 1.0

    assert count(events) == 2
    assert driver.asked["nvmlEventSetCreate"] == 2


def test_replaced_driver_ends_the_process() -> None:
    """What only a new process can mend is not swallowed here."""
    driver = FakeDriver(nvmlEventSetWait_v2=Fails(pynvml.NVML_ERROR_UNINITIALIZED))

    with pytest.raises(CallFailed):
        XidEvents(0, driver, 60.0).read()


@pytest.fixture
def events_file(tmp_path: Path) -> Path:
    """Where the stub finds events; there is an old one."""
    path = tmp_path / "errors"
    path.write_text("0 48\n")
    return path


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_lost_gpu_says_why(supervise: Supervise, scenario: Scenario, events_file: Path) -> None:
    """The XID that took a GPU off the bus is counted for it alone, and stays while it is down."""
    supervisor = supervise(PATIENT, STUB_EVENTS=str(events_file))
    wait_until(lambda: [gpu.xid_events for gpu in gpus(supervisor)] == [0, 0])
    append(events_file, "1 79\n")
    wait_until(lambda: gpus(supervisor)[1].xid_events == 1)
    scenario.play("* 1 15")
    wait_until(lambda: ups(supervisor) == [True, False])
    well, lost = gpus(supervisor)

    assert (well.xid_events, well.xid_errors) == (0, {})
    assert (lost.xid_events, lost.xid_errors, lost.xid_source) == (1, {"79": 1}, "nvml")
    assert lost.uuid


def test_readable_log_of_the_kernel_is_the_only_source(
    supervise: Supervise, events_file: Path, tmp_path: Path
) -> None:
    """An error that both the log and NVML's events report is counted once."""
    log = tmp_path / "kmsg"
    log.touch()
    timing = replace(PATIENT, path_kmsg=str(log))
    supervisor = supervise(timing, gpus=1, STUB_EVENTS=str(events_file))
    wait_until(lambda: [gpu.xid_events for gpu in gpus(supervisor)] == [0])
    append(events_file, "0 79\n")
    append(log, "3,1,2,-;NVRM: Xid (PCI:0000:10:00): 79, pid=1, GPU has fallen off the bus.\n")
    wait_until(lambda: gpus(supervisor)[0].xid_events != 0)
    before = time.time()
    sample = wait_for_sample(supervisor, lambda one: one.timestamp_seconds > before + 0.2)

    assert (sample.gpus[0].xid_events, sample.gpus[0].xid_source) == (1, "kmsg")


FALLEN = (
    "3,1234,98765,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=77, GPU has fallen off the bus.\n"
    " SUBSYSTEM=pci\n DEVICE=+pci:0000:1b:00.0\n"
)
NVML_BUS_ID = "00000000:1B:00.0"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with an old error in it."""
    path = tmp_path / "kmsg"
    path.write_text(FALLEN)
    return path


def opened(path: Path) -> Kmsg:
    kmsg = open_kmsg(str(path))
    assert kmsg is not None
    return kmsg


def after(log: Path, text: str) -> Kmsg:
    """Return the reader of *log* after the kernel has written *text*."""
    kmsg = opened(log)
    with log.open("a", encoding="latin-1") as file:
        file.write(text)
    kmsg.read()
    return kmsg


@pytest.mark.parametrize("path", ["/nowhere/kmsg", "/dev/null"])
def test_host_whose_log_cannot_be_read_has_none(path: str) -> None:
    """No file, or the /dev/null that containers have in its place: not a log without errors."""
    assert open_kmsg(path) is None


def test_error_is_counted_for_the_gpu_at_that_place(log: Path) -> None:
    """The kernel's bus id has another form than NVML's and means the same GPU."""
    kmsg = after(log, FALLEN + FALLEN.replace("1b:00", "3d:00").replace("79", "119"))

    assert kmsg.counts(NVML_BUS_ID).by_kind() == {"79": 1}
    assert kmsg.counts("00000000:3D:00.0").by_kind() == {"119": 1}
    assert kmsg.counts("00000001:1B:00.0").events == 0


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("(PCI:0000:1b:00 GPU-I:05)", "94, pid='<unknown>', name=<unknown>, Contained"),
        ("(PCI:0000:1B:00.0)", "94"),
        ("(0000:1b:00)", "94, Channel 00000001"),
    ],
)
def test_every_form_of_the_message_is_known(log: Path, place: str, kind: str) -> None:
    """A MIG instance, a function number or an older driver change the form, not the meaning."""
    kmsg = after(log, f"4,1,2,c;nvidia 0000:1b:00.0: NVRM: Xid {place}: {kind}\n")

    assert kmsg.counts(NVML_BUS_ID).by_kind() == {"94": 1}


@pytest.mark.parametrize(
    "line",
    [
        "",
        FALLEN.replace("3,1234", "11,1234", 1),
        "6,1,2,-;NVRM: GPU at PCI:0000:1b:00: GPU-00000000\n",
        "6,1,2,-;usb 1-1: new device\n \xff\n\n",
    ],
    ids=["only what was there", "written by a program", "another message", "anything"],
)
def test_other_lines_count_nothing(log: Path, line: str) -> None:
    """Each start would count old errors again, and only the kernel reports any."""
    assert after(log, line).counts(NVML_BUS_ID).events == 0


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple[Kmsg, int]]:
    """A log that, as the real one, has a reader wait for more; and where to write."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    kmsg = opened(path)
    writer = os.open(path, os.O_WRONLY)
    yield kmsg, writer
    os.close(writer)


def test_reading_never_waits_and_halves_of_a_line_are_joined(pipe: tuple[Kmsg, int]) -> None:
    """The sample goes out in time though the kernel has nothing to say."""
    kmsg, writer = pipe
    kmsg.read()
    os.write(writer, FALLEN[:40].encode())
    kmsg.read()
    os.write(writer, FALLEN[40:].encode())
    kmsg.read()

    assert kmsg.counts(NVML_BUS_ID).events == 1


def test_overwritten_log_is_read_on(
    pipe: tuple[Kmsg, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood that pushed records out costs those and not what comes after."""
    kmsg, writer = pipe
    os.write(writer, FALLEN.encode())
    real_read = os.read
    failed: list[bool] = []

    def read(file: int, size: int) -> bytes:
        if not failed:
            failed.append(True)
            raise BrokenPipeError
        return real_read(file, size)

    monkeypatch.setattr(os, "read", read)
    kmsg.read()

    assert kmsg.counts(NVML_BUS_ID).events == 1
