"""What the worker knows of a node and its GPUs: which there are, and why one is not read.

Which are expected and bound, what travels, how a GPU is asked, and its XID errors.
"""

import os
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pynvml
import pytest

from exporter.nvml import sample as sample_module
from exporter.nvml.backoff import Backoff
from exporter.nvml.calls import CallFailed, Calls
from exporter.nvml.expected import FILE_NAME, ExpectedGpus
from exporter.nvml.readings.one_call import Reading
from exporter.nvml.readings.query import UNSUPPORTED_FOR_SECONDS
from exporter.nvml.sample import GpuSample, NodeSample
from exporter.nvml.worker import gpu as gpu_module
from exporter.nvml.worker import node as node_module
from exporter.nvml.worker.events import XidEvents
from exporter.nvml.worker.gpu import Gpu
from exporter.nvml.worker.kmsg import open_kmsg
from exporter.nvml.worker.node import LOOK_SECONDS, BoundGpus, NeedsNewProcess, NodeSampler
from exporter.nvml.worker.xids import XidCounts
from tests.exporter.node import Clock
from tests.exporter.nvml.drivers import (
    PATIENT,
    TIMES_OUT,
    Driver,
    Fails,
    Scenario,
    Supervise,
    gpus,
    ups,
)
from tests.exporter.running import wait_until


def gpu(uuid: str, place: str | None = None) -> GpuSample:
    return GpuSample(0, up=True, uuid=uuid, pci_bus_id=f"at {uuid}" if place is None else place)


A, B, C = gpu("a"), gpu("b"), gpu("c")


def seen(directory: Path | None, *listed: GpuSample, number: int = 0) -> ExpectedGpus:
    """Return what an exporter expects that starts on a node with *listed*."""
    expected = ExpectedGpus(directory, number)
    expected.see(NodeSample(1.0, len(listed), gpus=listed))
    return expected


# What each exporter after the other saw, what --gpus.expected says, how many are expected at last,
# and which of them are missing where only GPU a is listed.
@pytest.mark.parametrize(
    ("runs", "flag", "number", "missing"),
    [
        ([[]], 0, None, []),
        # The next exporter, even after a reboot, names the GPU that fell off the bus.
        ([[A, B], [A]], 0, 2, ["b"]),
        # Another GPU in its slot ends a GPU's being expected; a move to another slot does not.
        ([[gpu("b", "1"), gpu("d", "2")], [gpu("d", "3"), gpu("e", "1")]], 0, 2, ["d", "e"]),
        # A GPU without a bus id has no place; one lost before it was opened is not learnt yet.
        ([[gpu("a", "")], [gpu("b", "")], [GpuSample(0, up=False)]], 0, 2, ["b"]),
        # With --gpus.expected no more are missing than that many less those listed.
        ([[A, B, C]], 2, 2, ["b"]),
        ([[A, B, C]], 4, 4, ["b", "c"]),
    ],
    ids=["no GPU", "restart", "replaced", "nameless", "2 of 3", "4 of 3"],
)
def test_gpus_that_were_once_there_are_expected(
    tmp_path: Path, runs: list[list[GpuSample]], flag: int, number: int | None, missing: list[str]
) -> None:
    for listed in runs:
        expected = seen(tmp_path, *listed, number=flag)

    assert expected.number == number
    assert sorted(expected.missing([A])) == missing
    assert [path.name for path in tmp_path.iterdir()] == ([FILE_NAME] if number else [])


@pytest.mark.parametrize("text", ["[]", '{"gpus": {"GPU-a": 1}}', "\xff"])
def test_list_starts_over_when_it_is_damaged_or_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """It is written when something changed: a sample a second costs no write."""
    (tmp_path / FILE_NAME).write_text(text, encoding="latin-1")
    expected = seen(tmp_path, A)
    assert expected.number == ExpectedGpus(tmp_path).number == 1
    (said,) = caplog.messages
    assert said == f"{tmp_path}/{FILE_NAME} is damaged; the list of expected GPUs starts over"

    (tmp_path / FILE_NAME).unlink()
    expected.see(NodeSample(1.0, 1, gpus=(A,)))
    assert not (tmp_path / FILE_NAME).exists()


def test_directory_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """GPUs are then expected until the exporter ends, which is said once and prevents nothing."""
    expected = seen(tmp_path / "absent", A)
    expected.see(NodeSample(1.0, 1, gpus=(B,)))
    (tmp_path / FILE_NAME).mkdir()

    assert (expected.missing([]), ExpectedGpus(tmp_path).number) == (["a", "b"], None)
    cannot_write, cannot_read = caplog.messages
    assert "gpus.json: No such file or directory" in cannot_write
    assert "--gpus.expected" in cannot_write
    assert "cannot read" in cannot_read


def test_change_of_bound_gpus_is_seen_twice(tmp_path: Path) -> None:
    """A GPU that is gone counts once two looks in a row agree, ten seconds apart.

    Between two looks, or in one of them alone, it may be away. No driver, or a container that
    cannot see it, is not a change.
    """
    clock, gpu = Clock(), tmp_path / "gpus" / "10"
    gpu.mkdir(parents=True)
    bound, unknown, told = BoundGpus(gpu.parent, clock), BoundGpus(tmp_path / "none", clock), []
    for is_there in (False, True, False, False):
        if is_there:
            gpu.mkdir()
        elif gpu.exists():
            gpu.rmdir()
        assert not bound.have_changed()
        clock.seconds += LOOK_SECONDS
        told.append((bound.have_changed(), unknown.have_changed()))

    assert told == [(False, False)] * 3 + [(True, False)]


def test_sample_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values travel without names, so those of a worker with other fields are rejected."""
    line = NodeSample(1.0, 0).to_json()
    monkeypatch.setattr(sample_module, "LAYOUT", 1)

    with pytest.raises(ValueError, match="a sample with layout"):
        NodeSample.from_json(line)


def test_wait_doubles_up_to_the_cap_and_starts_anew_after_success() -> None:
    """What always fails costs little; what works again is tried at once."""
    backoff = Backoff(first_seconds=1.0, cap_seconds=5.0)

    assert [backoff.next_seconds() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next_seconds() == 1.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The worker's own."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def answer(monkeypatch: pytest.MonkeyPatch, **answers: object) -> None:
    """Let pynvml's functions return this, or fail with it."""
    for name, value in answers.items():
        fails = isinstance(value, pynvml.NVMLError)
        function = mock.Mock(**{"side_effect" if fails else "return_value": value})
        function.__name__ = name
        monkeypatch.setattr(pynvml, name, function)


def test_library_that_never_fits_makes_way_after_a_minute(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """A mismatch is reported for that long, while the log is quiet; then a new process tries."""
    mismatch = pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    answer(monkeypatch, nvmlInit=mismatch)
    sampler = NodeSampler(PATIENT)
    for seconds in (0.0, 59.0, 0.9, 0.1):
        clock.seconds += seconds
        assert sampler.sample().error_reason == "version_mismatch"

    with pytest.raises(NeedsNewProcess):
        sampler.sample()


@pytest.mark.parametrize("hangs", [False, True])
def test_other_gpus_need_a_new_process(monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:
    """NVML counts once. While a call hangs it is left to the supervisor, which knows of that.

    A GPU is listed though the driver will not say its version.
    """
    unknown = pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
    answer(monkeypatch, nvmlInit=None, nvmlDeviceGetCount=1, nvmlDeviceGetHandleByIndex=unknown)
    answer(monkeypatch, nvmlSystemGetDriverVersion=unknown, nvmlSystemGetNVMLVersion="13")
    monkeypatch.setattr(node_module, "BoundGpus", mock.Mock())
    sampler = NodeSampler(replace(PATIENT, interval_seconds=20.0))
    sample = sampler.sample()
    assert (sample.gpus_visible, sample.driver_version, sample.nvml_version) == (1, None, "13")
    monkeypatch.setattr(Calls, "stuck", lambda self: sample if hangs else None)

    with nullcontext() if hangs else pytest.raises(NeedsNewProcess):
        sampler.sample()


def test_answer_that_pynvml_cannot_read_costs_that_reading_alone() -> None:
    """What else pynvml raises, as on a name that is no UTF-8, is a failure of that call."""

    def nvmlDeviceGetName() -> str:
        return b"\xff".decode()

    with pytest.raises(CallFailed, match="nvmlDeviceGetName on GPU 0 returned 999: Unicode") as got:
        Calls(60.0, 60.0)(0, nvmlDeviceGetName)

    assert got.value.code == pynvml.NVML_ERROR_UNKNOWN


def test_waking_a_gpu_may_take_longer() -> None:
    """Opening NVML takes seconds per GPU without a persistence daemon: that is not stuck."""
    calls = Calls(limit_seconds=0.0, slow_limit_seconds=60.0)
    stuck = []

    def nvmlInit() -> None:
        stuck.append(calls.stuck())

    calls(None, nvmlInit)

    assert stuck == [None]


POWER, TEMPERATURE = "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature"


def test_reading_is_kept_until_it_is_due_and_asked_again_when_it_failed(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """What is asked seldom stays on the page meanwhile, and is gone alone when it cannot be read.

    What failed is asked at once; what is not allowed in an hour, as a new permission may come.
    """
    seldom = Reading(("power_milliwatts",), pynvml.nvmlDeviceGetPowerUsage, every_seconds=10.0)
    always = Reading(("gpu_temperature_celsius",), pynvml.nvmlDeviceGetTemperature)
    monkeypatch.setattr(gpu_module, "READINGS", (seldom, always))
    driver = Driver()
    gpu = Gpu(0, driver, 60.0)

    def power_after(seconds: float, power: int | Fails = 5) -> int | None:
        clock.seconds += seconds
        driver.answers |= {POWER: power, TEMPERATURE: 40}
        sample = gpu.read()
        assert sample.gpu_temperature_celsius == 40
        return sample.power_milliwatts

    assert [power_after(seconds) for seconds in (0.0, 9.0, 1.0)] == [5, 5, 5]
    assert driver.asked[POWER] == 2
    assert power_after(10.0, TIMES_OUT) is None
    assert power_after(1.0) == 5
    assert power_after(10.0, Fails(pynvml.NVML_ERROR_NO_PERMISSION)) is None
    assert power_after(UNSUPPORTED_FOR_SECONDS - 1.0) is None
    assert power_after(1.0) == 5


def test_kinds_have_a_bound_and_events_do_not() -> None:
    """Each name is a series: a fourth kind counts without one, the known ones continue.

    A program that fails in many ways leaves names for what breaks next.
    """
    counts = XidCounts()
    for kind in (31, 13, 43, 45, 13, 31, 79, 74, 48, 79):
        counts.add(kind)

    assert (counts.events, counts.by_kind()) == (10, {"31": 2, "79": 2, "74": 1})


def test_gpu_that_failed_is_registered_anew_after_a_while(clock: Clock) -> None:
    """Whoever resets a GPU ends its set of events, of which the driver says nothing."""
    happened = [SimpleNamespace(eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=79)]

    def fetch(*_: object) -> SimpleNamespace:
        if not happened:
            raise Fails(pynvml.NVML_ERROR_UNKNOWN)
        return happened.pop()

    can = {"nvmlDeviceGetSupportedEventTypes": pynvml.nvmlEventTypeXidCriticalError}
    can |= dict.fromkeys(("nvmlEventSetCreate", "nvmlDeviceRegisterEvents"), 1)
    driver = Driver(nvmlEventSetWait_v2=fetch, **can)
    events = XidEvents(0, driver, retry_seconds=60.0)
    for seconds, sets in ((0.0, 1), (59.0, 1), (1.0, 2)):
        clock.seconds += seconds
        counts = events.read()
        assert counts is not None
        assert counts.by_kind() == {"79": 1}
        assert driver.asked["nvmlEventSetCreate"] == driver.asked["nvmlEventSetFree"] == sets


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="latin-1") as file:
        file.write(text)


@pytest.mark.parametrize("source", ["nvml", "kmsg"])
def test_lost_gpu_says_why(
    supervise: Supervise, scenario: Scenario, tmp_path: Path, source: str
) -> None:
    """The XID that took a GPU off the bus is counted for it alone, and stays while it is down.

    It is counted once: a readable log of the kernel is the only source.
    """
    events, log = tmp_path / "errors", tmp_path / "kmsg"
    events.write_text("0 48\n")  # Before the worker began.
    log.touch()
    path_kmsg = str(log) if source == "kmsg" else PATIENT.path_kmsg
    supervisor = supervise(replace(PATIENT, path_kmsg=path_kmsg), STUB_EVENTS=str(events))

    wait_until(lambda: [gpu.xid_events for gpu in gpus(supervisor)] == [0, 0])
    append(events, "1 79\n")
    append(log, FALLEN.replace("0010:1b:1f", "0000:11:00"))
    wait_until(lambda: gpus(supervisor)[1].xid_events == 1)
    scenario.play("* 1 15")
    wait_until(lambda: ups(supervisor) == [True, False])
    well, lost = gpus(supervisor)
    assert (well.xid_events, well.xid_errors) == (0, {})
    assert (lost.xid_events, lost.xid_errors, lost.xid_source) == (1, {"79": 1}, source)
    assert lost.uuid


FALLEN = (
    "3,1234,98765,-;NVRM: Xid (PCI:0010:1b:1f): 79, pid=77, GPU has fallen off the bus.\n"
    " SUBSYSTEM=pci\n DEVICE=+pci:0010:1b:1f.0\n"
)
BUS_ID = "00000010:1B:1F.0"


@pytest.mark.parametrize("path", ["/nowhere/kmsg", "/dev/null"])
def test_host_whose_log_cannot_be_read_has_none(path: str) -> None:
    """No file, or the /dev/null that containers have in its place: not a log without errors."""
    assert open_kmsg(path) is None


# The kernel's bus id has another form than NVML's and means the same GPU. A MIG instance, a
# function number or an older driver change the form of the message, not its meaning.
FORMS = (
    "(PCI:0010:1b:1f GPU-I:05): 94, pid='<unknown>', name=<unknown>, Contained",
    "(PCI:0010:1B:1F.0): 94",
    "(0010:1b:1f): 94, Channel 00000001",
)
# Only the kernel reports any; each start would count old ones again.
NO_ERRORS = (
    "",
    FALLEN.replace("3,1234", "11,1234", 1),
    FALLEN.replace("PCI:0010", "PCI:0011"),
    "6,1,2,-;NVRM: GPU at PCI:0010:1b:1f: GPU-00000000\n",
    "6,1,2,-;usb 1-1: new device\n \xff\n\n",
    # A program may have any name.
    "6,1,2,-;x[7]: segfault at 0 ip 0 sp 0 error 4 in NVRM: Xid (PCI:0010:1b:1f): 79, x[1+1]\n",
)


@pytest.mark.parametrize(
    ("written", "kinds"),
    [
        (FALLEN + FALLEN.replace("1b:1f", "3d:1f").replace("79", "119"), {"79": 1}),
        *((f"4,1,2,c;nvidia 0010:1b:1f.0: NVRM: Xid {form}\n", {"94": 1}) for form in FORMS),
        *((line, {}) for line in NO_ERRORS),
    ],
)
def test_new_messages_of_the_kernel_are_counted_for_the_gpu_at_that_place(
    tmp_path: Path, written: str, kinds: dict[str, int]
) -> None:
    log = tmp_path / "kmsg"
    log.write_text(FALLEN)
    kmsg = open_kmsg(str(log))
    assert kmsg is not None
    append(log, written)
    kmsg.read()

    assert kmsg.counts(BUS_ID).by_kind() == kinds


def test_reading_never_waits_and_nothing_that_can_be_had_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real log has a reader wait for more, as a pipe does: the sample goes out in time.

    Halves of a line are joined. A flood that pushed records out costs those alone.
    """
    os.mkfifo(tmp_path / "pipe")
    kmsg = open_kmsg(str(tmp_path / "pipe"))
    assert kmsg is not None
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
