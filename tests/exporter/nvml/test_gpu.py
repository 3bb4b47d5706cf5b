"""One GPU as the worker reads it, on threads that a hang does not hold up; and its XID errors."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.nvml.calls import PROCESS_OBSOLETE, CallFailed, Calls
from exporter.nvml.readings.one_call import READINGS, Reading
from exporter.nvml.readings.query import UNSUPPORTED_FOR_SECONDS, Ask
from exporter.nvml.sample import GpuSample
from exporter.nvml.worker import gpu as gpu_module
from exporter.nvml.worker import threads as threads_module
from exporter.nvml.worker.events import XidEvents
from exporter.nvml.worker.gpu import Gpu
from exporter.nvml.worker.kmsg import Kmsg, open_kmsg
from exporter.nvml.worker.threads import Threads
from exporter.nvml.worker.xids import XidCounts
from tests.exporter.node import Clock
from tests.exporter.nvml.drivers import PATIENT, Driver, Fails, Scenario, Supervise, gpus, ups
from tests.exporter.running import wait_until

CALLS = Calls(limit_seconds=60.0, slow_limit_seconds=60.0)


def test_answer_that_pynvml_cannot_read_costs_that_reading_alone() -> None:
    """What else pynvml raises, as on a name that is no UTF-8, is a failure of that call."""

    def nvmlDeviceGetName() -> str:
        return b"\xff".decode()

    with pytest.raises(CallFailed, match="nvmlDeviceGetName on GPU 0 returned 999: Unicode") as got:
        CALLS(0, nvmlDeviceGetName)

    assert got.value.code == pynvml.NVML_ERROR_UNKNOWN


def test_waking_a_gpu_may_take_longer() -> None:
    """Opening NVML takes seconds per GPU without a persistence daemon: that is not stuck."""
    calls = Calls(limit_seconds=0.0, slow_limit_seconds=60.0)
    stuck = []

    def nvmlInit() -> None:
        stuck.append(calls.stuck())

    calls(None, nvmlInit)

    assert stuck == [None]


def test_quick_work_is_done_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes no time to speak of costs no second thread, nor does what waits for a moment."""
    monkeypatch.setattr(threads_module, "HELD_UP_SECONDS", 20.0)
    threads, go_on = Threads(), threading.Event()
    used = {threads.submit(threading.get_ident).result(20) for _ in range(20)}
    blocked, waiting = threads.submit(lambda: go_on.wait(20)), threads.submit(threading.get_ident)
    go_on.set()

    assert blocked.result(20)
    assert used | {waiting.result(20)} == used
    assert len(used - {threading.get_ident()}) == 1


POWER = "nvmlDeviceGetPowerUsage"
OPENING = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "pci_bus_id")
# Every reading, and the older one that stands in for it.
ROWS = [row for reading in READINGS for row in (reading, reading.older) if row is not None]
FUNCTIONS = {row.function.__name__ for row in ROWS}


class FakeDriver(Driver):
    """Gives each function its name or numbers, whichever it is read as."""

    def otherwise(self, name: str) -> Any:
        return name if name in OPENING else _Answer()

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._answer(function.__name__, *args)


class _Answer(int):
    """One number, or a structure of them, as the function has it."""

    gpu = memory = total = used = free = 1

    def __iter__(self) -> Iterator[int]:
        return iter((1, 1, 1, 1))


class PowerSlowly:
    """A part that asks what a row of READINGS asks too."""

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        milliwatts = ask(pynvml.nvmlDeviceGetPowerUsage)
        return {} if milliwatts is None else {"power_milliwatts": milliwatts}


def read(driver: FakeDriver) -> GpuSample:
    return Gpu(0, driver, 60.0).read()


def readings_of(sample: GpuSample) -> set[str]:
    fields = {field for reading in READINGS for field in reading.fields}
    return {field for field in fields if getattr(sample, field) is not None}


def failing(code: int, *names: str) -> FakeDriver:
    """Return a driver of which these functions fail."""
    driver = FakeDriver()
    driver.fail(*names, code=code)
    return driver


def test_every_reading_that_fails_is_missed_alone() -> None:
    """A function that this GPU does not have costs its own fields and no others."""
    everything = readings_of(read(FakeDriver()))
    for name in FUNCTIONS:
        sample = read(failing(pynvml.NVML_ERROR_NOT_SUPPORTED, name))
        left = {field for row in ROWS if row.function.__name__ != name for field in row.fields}

        assert sample.up
        assert readings_of(sample) == everything & left


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
    ],
)
def test_gpu_that_supports_nothing_is_up_and_not_asked_again(code: int) -> None:
    """What a GPU does not support has no reading, and is not read every second."""
    driver = failing(code, *FUNCTIONS)
    gpu = Gpu(0, driver, 60.0, slow=[PowerSlowly()])
    assert gpu.read().up
    assert gpu.read_slow() == {}
    driver.asked.clear()

    sample = gpu.read()
    assert (sample.up, readings_of(sample), gpu.read_slow()) == (True, set(), {})
    assert not driver.asked


def test_reading_is_kept_until_it_is_due_and_asked_again_when_it_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is asked seldom stays on the page meanwhile, and is gone when it cannot be read.

    What failed is asked at once; what is not allowed in an hour, as a new permission may come.
    """
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    seldom = Reading(("power_milliwatts",), pynvml.nvmlDeviceGetPowerUsage, every_seconds=10.0)
    always = Reading(("gpu_temperature_celsius",), pynvml.nvmlDeviceGetTemperature)
    monkeypatch.setattr(gpu_module, "READINGS", (seldom, always))
    driver = FakeDriver()
    gpu = Gpu(0, driver, 60.0)

    def power_after(seconds: float, code: int | None = None) -> int | None:
        clock.seconds += seconds
        driver.answers = {} if code is None else {POWER: Fails(code)}
        return gpu.read().power_milliwatts

    assert [power_after(seconds) for seconds in (0.0, 9.0, 1.0)] == [0, 0, 0]
    assert driver.asked[POWER] == 2
    assert power_after(10.0, pynvml.NVML_ERROR_TIMEOUT) is None
    assert power_after(1.0) == 0
    assert power_after(10.0, pynvml.NVML_ERROR_NO_PERMISSION) is None
    assert power_after(UNSUPPORTED_FOR_SECONDS - 1.0) is None
    assert power_after(1.0) == 0


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])
def test_lost_gpu_keeps_its_identity_and_is_left_alone_for_a_while(code: int) -> None:
    """A lost GPU is down with no reading, and opened again only after the back-off."""
    driver = FakeDriver()
    gpu = Gpu(0, driver, 60.0, slow=[PowerSlowly()])
    assert gpu.read().up
    driver.fail(POWER, code=code)

    sample = gpu.read()
    driver.asked.clear()
    assert (sample.up, sample.uuid) == (False, "nvmlDeviceGetUUID")
    assert readings_of(sample) == set()
    assert (gpu.read(), gpu.read_slow()) == (sample, {})
    assert not driver.asked


def test_gpu_that_only_has_errors_to_tell_is_down() -> None:
    """A GPU is not up just because it is not "lost": in a container NVML may say 999 to all."""
    assert not read(failing(pynvml.NVML_ERROR_UNKNOWN, *FUNCTIONS)).up
    assert not read(failing(pynvml.NVML_ERROR_GPU_IS_LOST, "nvmlDeviceGetHandleByIndex")).up


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


class EventDriver(Driver):
    """Gives *events*, then timeouts."""

    def __init__(self, *events: tuple[int, int], **answers: Any) -> None:
        super().__init__(nvmlDeviceGetSupportedEventTypes=XID, nvmlEventSetWait_v2=self.next_event)
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
    driver = EventDriver(**refusal)
    events = XidEvents(0, driver, 60.0)
    assert count(events) is None
    driver.asked.clear()

    assert count(events) is None
    assert not driver.asked


def test_events_are_counted_once_and_only_errors() -> None:
    """Other kinds of events are not; a flood that would keep its thread is taken in parts."""
    events = XidEvents(0, EventDriver((XID, 79), (CLOCK, 0), (XID, 31), (XID, 79)), 60.0)

    counts = events.read()
    assert counts is not None
    assert counts.by_kind() == {"79": 2, "31": 1}
    assert count(events) == 3
    assert count(XidEvents(0, EventDriver(*[(XID, 31)] * 300), 60.0)) == 256


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN])
def test_gpu_that_comes_back_is_registered_anew(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """An error ends the set, and keeps the count; a GPU that was reset counts on after a while."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    driver = EventDriver((XID, 79))
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


@pytest.mark.parametrize("code", sorted(PROCESS_OBSOLETE))
def test_replaced_driver_ends_the_process(code: int) -> None:
    """If only a new process can continue, every kind of reading passes the failure up."""
    driver = FakeDriver()
    gpu = Gpu(0, driver, 60.0, slow=[PowerSlowly()])
    gpu.read()
    driver.fail(*FUNCTIONS, code=code)
    events = XidEvents(0, EventDriver(nvmlEventSetWait_v2=Fails(code)), 60.0)

    for one_kind in (gpu.read, gpu.read_slow, events.read):
        with pytest.raises(CallFailed):
            one_kind()


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="latin-1") as file:
        file.write(text)


def test_lost_gpu_says_why(supervise: Supervise, scenario: Scenario, tmp_path: Path) -> None:
    """The XID that took a GPU off the bus is counted for it alone, and stays while it is down."""
    events = tmp_path / "errors"
    events.write_text("0 48\n")  # Before the worker began.
    supervisor = supervise(PATIENT, STUB_EVENTS=str(events))
    wait_until(lambda: [gpu.xid_events for gpu in gpus(supervisor)] == [0, 0])
    append(events, "1 79\n")
    wait_until(lambda: gpus(supervisor)[1].xid_events == 1)
    scenario.play("* 1 15")
    wait_until(lambda: ups(supervisor) == [True, False])
    well, lost = gpus(supervisor)

    assert (well.xid_events, well.xid_errors) == (0, {})
    assert (lost.xid_events, lost.xid_errors, lost.xid_source) == (1, {"79": 1}, "nvml")
    assert lost.uuid


def test_readable_log_of_the_kernel_is_the_only_source(
    supervise: Supervise, tmp_path: Path
) -> None:
    """An error that both the log and NVML's events report is counted once."""
    log, events = tmp_path / "kmsg", tmp_path / "errors"
    log.touch()
    events.touch()
    supervisor = supervise(replace(PATIENT, path_kmsg=str(log)), gpus=1, STUB_EVENTS=str(events))
    wait_until(lambda: [gpu.xid_source for gpu in gpus(supervisor)] == ["kmsg"])
    append(events, "0 79\n")
    append(log, "3,1,2,-;NVRM: Xid (PCI:0000:10:00): 79, pid=1, GPU has fallen off the bus.\n")
    wait_until(lambda: gpus(supervisor)[0].xid_events != 0)

    assert (gpus(supervisor)[0].xid_events, gpus(supervisor)[0].xid_source) == (1, "kmsg")


FALLEN = (
    "3,1234,98765,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=77, GPU has fallen off the bus.\n"
    " SUBSYSTEM=pci\n DEVICE=+pci:0000:1b:00.0\n"
)
BUS_ID = "00000000:1B:00.0"


def opened(path: Path) -> Kmsg:
    kmsg = open_kmsg(str(path))
    assert kmsg is not None
    return kmsg


@pytest.mark.parametrize("path", ["/nowhere/kmsg", "/dev/null"])
def test_host_whose_log_cannot_be_read_has_none(path: str) -> None:
    """No file, or the /dev/null that containers have in its place: not a log without errors."""
    assert open_kmsg(path) is None


# The kernel's bus id has another form than NVML's and means the same GPU. A MIG instance, a
# function number or an older driver change the form of the message, not its meaning.
@pytest.mark.parametrize(
    ("written", "bus_id", "kinds"),
    [
        (FALLEN, BUS_ID, {"79": 1}),
        (FALLEN + FALLEN.replace("1b:00", "3d:00").replace("79", "119"), BUS_ID, {"79": 1}),
        (FALLEN.replace("1b:00", "3d:00"), "00000000:3D:00.0", {"79": 1}),
        (FALLEN, "00000001:1B:00.0", {}),
        *(
            (f"4,1,2,c;nvidia 0000:1b:00.0: NVRM: Xid {form}\n", BUS_ID, {"94": 1})
            for form in (
                "(PCI:0000:1b:00 GPU-I:05): 94, pid='<unknown>', name=<unknown>, Contained",
                "(PCI:0000:1B:00.0): 94",
                "(0000:1b:00): 94, Channel 00000001",
            )
        ),
        # Only the kernel reports any; each start would count old ones again.
        *(
            (line, BUS_ID, {})
            for line in (
                "",
                FALLEN.replace("3,1234", "11,1234", 1),
                "6,1,2,-;NVRM: GPU at PCI:0000:1b:00: GPU-00000000\n",
                "6,1,2,-;usb 1-1: new device\n \xff\n\n",
            )
        ),
    ],
)
def test_new_messages_of_the_kernel_are_counted_for_the_gpu_at_that_place(
    tmp_path: Path, written: str, bus_id: str, kinds: dict[str, int]
) -> None:
    log = tmp_path / "kmsg"
    log.write_text(FALLEN)
    kmsg = opened(log)
    append(log, written)
    kmsg.read()

    assert kmsg.counts(bus_id).by_kind() == kinds


def test_reading_never_waits_and_nothing_that_can_be_had_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real log has a reader wait for more, as a pipe does: the sample goes out in time.

    Halves of a line are joined. A flood that pushed records out costs those alone.
    """
    os.mkfifo(tmp_path / "pipe")
    kmsg = opened(tmp_path / "pipe")
    with (tmp_path / "pipe").open("wb", buffering=0) as log:
        kmsg.read()
        for half in (FALLEN[:40], FALLEN[40:]):
            log.write(half.encode())
            kmsg.read()
        assert kmsg.counts(BUS_ID).events == 1

        log.write(FALLEN.encode())
        answers = iter([BrokenPipeError()])
        read = os.read

        def overwritten(file: int, size: int) -> bytes:
            for error in answers:
                raise error
            return read(file, size)

        monkeypatch.setattr(os, "read", overwritten)
        kmsg.read()
    assert kmsg.counts(BUS_ID).events == 2
