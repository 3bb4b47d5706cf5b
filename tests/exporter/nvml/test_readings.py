"""What one GPU is asked: each part of a reading on a driver that answers by function name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.nvml.calls import CallFailed, Calls
from exporter.nvml.readings.fields import Field, FieldValues
from exporter.nvml.readings.one_call import decoder_utilization, performance_state
from exporter.nvml.readings.placement import Placement
from exporter.nvml.readings.processes import Processes
from exporter.nvml.readings.query import UNSUPPORTED_FOR_SECONDS, Ask
from exporter.nvml.readings.throttle import COUNTER_FIELDS, ThrottleSeconds
from exporter.nvml.readings.utilization import SAMPLES_EVERY_SECONDS, Utilization, gpu_samples
from exporter.nvml.readings.window import ReadingWindow
from exporter.nvml.sample import REASON_BITS, GpuProcess
from tests.exporter.nvml.driver import Driver, Fails

UNSIGNED = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
FIVE = (UNSIGNED, "uiVal", 5)


class FakeFields:
    """A driver's field values: an nvmlReturn_t, or a type with the value and its member."""

    def __init__(self, answers: dict[Field, int | tuple[int, str, float]]) -> None:
        self.answers = answers
        self.asked: list[list[Field]] = []

    def __call__(self, handle: object, fields: Sequence[Field]) -> object:
        self.asked.append(list(fields))
        entries = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for entry, asked in zip(entries, fields, strict=True):
            answer = self.answers.get(asked, pynvml.NVML_ERROR_NOT_SUPPORTED)
            if isinstance(answer, int):
                entry.nvmlReturn = answer
            else:
                entry.valueType = answer[0]
                setattr(entry.value, answer[1], answer[2])
        return entries


@pytest.fixture
def fields_driver(monkeypatch: pytest.MonkeyPatch) -> FakeFields:
    """A driver that has no field yet."""
    fake = FakeFields({})
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", fake)
    return fake


def read_fields(ask: Ask, *fields: Field, now: float = 0.0) -> dict[Field, int | float]:
    return FieldValues(fields).read(ask, now)


@pytest.fixture
def ask() -> Ask:
    return Ask(0, object(), Calls(60.0, 60.0))


def test_gpu_without_field_values_is_asked_once_an_hour(
    fields_driver: FakeFields, ask: Ask
) -> None:
    """If no field is supported, there is no value, no failure, and no call for an hour."""
    fields = FieldValues([(74, 0), (76, 0)])

    assert fields.read(ask, 0.0) == {} == fields.read(ask, 1.0)
    assert len(fields_driver.asked) == 1
    assert ask.failure is None


def test_each_value_is_read_as_its_own_type_in_one_call(
    fields_driver: FakeFields, ask: Ask
) -> None:
    """The type is the entry's own, a scope is part of the field, and one call asks for all."""
    fields_driver.answers = {
        (1, 0): (UNSIGNED, "uiVal", 2**32 - 1),
        (1, 7): (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, "ullVal", 2**40),
        (2, 0): (pynvml.NVML_VALUE_TYPE_SIGNED_INT, "siVal", -3),
        (3, 0): (pynvml.NVML_VALUE_TYPE_DOUBLE, "dVal", 0.5),
    }

    assert read_fields(ask, *fields_driver.answers) == {
        (1, 0): 2**32 - 1,
        (1, 7): 2**40,
        (2, 0): -3,
        (3, 0): 0.5,
    }
    assert len(fields_driver.asked) == 1


@pytest.mark.parametrize(
    "never",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        (pynvml.NVML_VALUE_TYPE_COUNT, "ullVal", 1),
    ],
    ids=["not supported", "no permission", "unknown number", "unknown type"],
)
def test_unsupported_field_is_left_out_for_an_hour(
    fields_driver: FakeFields, ask: Ask, never: int | tuple[int, str, float]
) -> None:
    """A field that this GPU does not have costs the others nothing, and is tried again later."""
    fields_driver.answers = {(1, 0): never, (2, 0): FIVE}
    fields = FieldValues([(1, 0), (2, 0)])
    for now in (0.0, 1.0, UNSUPPORTED_FOR_SECONDS):
        assert fields.read(ask, now) == {(2, 0): 5}

    assert fields_driver.asked == [[(1, 0), (2, 0)], [(2, 0)], [(1, 0), (2, 0)]]


def test_passing_failure_costs_one_value_once(fields_driver: FakeFields, ask: Ask) -> None:
    """A field that is unavailable now is read again the next time."""
    fields_driver.answers = {(1, 0): pynvml.NVML_ERROR_TIMEOUT, (2, 0): FIVE}
    fields = FieldValues([(1, 0), (2, 0)])
    assert fields.read(ask, 0.0) == {(2, 0): 5}
    fields_driver.answers[(1, 0)] = FIVE

    assert fields.read(ask, 1.0) == {(1, 0): 5, (2, 0): 5}


def test_fields_that_all_fail_are_a_failure(fields_driver: FakeFields, ask: Ask) -> None:
    """A GPU that answers 999 to everything is not taken for one that lacks the fields."""
    fields_driver.answers = {
        (1, 0): pynvml.NVML_ERROR_NOT_SUPPORTED,
        (2, 0): pynvml.NVML_ERROR_UNKNOWN,
    }

    assert read_fields(ask, (1, 0), (2, 0)) == {}
    assert ask.failure is not None
    assert ask.failure.code == pynvml.NVML_ERROR_UNKNOWN
    assert not ask.has_answered


def test_lost_gpu_is_told_by_one_field(fields_driver: FakeFields, ask: Ask) -> None:
    """The call itself may succeed on a lost GPU: an entry with that error counts."""
    fields_driver.answers = {(1, 0): FIVE, (2, 0): pynvml.NVML_ERROR_GPU_IS_LOST}

    with pytest.raises(CallFailed):
        read_fields(ask, (1, 0), (2, 0))


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, object], None]:
    """Let a function of the driver answer, or fail with an error."""

    def let(function: str, answer: object) -> None:
        def call(*arguments: object) -> object:
            if isinstance(answer, pynvml.NVMLError):
                raise answer
            return answer

        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{function}", call)

    return let


Say = Callable[[str, object], None]


def test_unknown_performance_state_is_none(say: Say) -> None:
    """NVML has 32 for a state that it does not know, which is not the slowest of all."""
    say("PerformanceState", 32)

    with pytest.raises(pynvml.NVMLError) as raised:
        performance_state(object())
    assert raised.value.value == pynvml.NVML_ERROR_NOT_SUPPORTED


NO_DECODER = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
NO_CALL = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


@pytest.mark.parametrize(
    ("video", "images", "told"),
    [
        (30, (95, 167_000), 95),
        (95, (30, 167_000), 95),
        (0, (0, 167_000), 0),
        (40, NO_DECODER, 40),
        (40, NO_CALL, 40),
    ],
)
def test_busier_decoder_counts(say: Say, video: int, images: object, told: int) -> None:
    """Videos and images have a decoder each; older GPUs and drivers lack that of images."""
    say("DecoderUtilization", (video, 167_000))
    say("JpgUtilization", images)

    assert decoder_utilization(object()) == told


def test_lost_gpu_has_no_decoder(say: Say) -> None:
    """Only a missing decoder of images is passed over; other failures are told."""
    say("DecoderUtilization", (40, 167_000))
    say("JpgUtilization", pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))

    with pytest.raises(pynvml.NVMLError):
        decoder_utilization(object())


PCI = SimpleNamespace(busId="00000000:1B:00.0")
MASKS = {
    "nvmlDeviceGetMemoryAffinity": [0b10, 0],
    "nvmlDeviceGetCpuAffinity": [0b1011, 0b1],
}


def place(driver: Driver, sysfs: Path = Path("/nowhere")) -> dict[str, Any]:
    return Placement(sysfs).read(driver.opened(), 100.0)


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({}, {}),
        # Masks of 64 bits a word; the device file's number is NVML's alone.
        (
            MASKS | {"nvmlDeviceGetMinorNumber": 5, "nvmlDeviceGetSerial": "1650"},
            {"serial": "1650", "minor_number": 5, "numa_node": 1, "cpu_affinity": (0, 1, 3, 64)},
        ),
        ({"nvmlDeviceGetMemoryAffinity": [0b11]}, {}),  # Two bits name no node.
    ],
    ids=["neither knows", "container without sysfs", "near several nodes"],
)
def test_nvml_is_asked_where_the_kernel_tells_nothing(
    answers: dict[str, Any], told: dict[str, Any]
) -> None:
    assert place(Driver(**answers)) == told


@pytest.mark.parametrize(("numa_node", "told"), [("0", {"numa_node": 0}), ("-1", {})])
def test_kernel_knows_better_than_nvml(tmp_path: Path, numa_node: str, told: Any) -> None:
    """Its files are found by its form of NVML's bus id; its -1 is no node, nor NVML's."""
    device = tmp_path / "bus/pci/devices/0000:1b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{numa_node}\n")
    (device / "local_cpulist").write_text("0-2,64\n")
    driver = Driver(nvmlDeviceGetPciInfo=PCI, **MASKS)

    assert place(driver, tmp_path) == told | {"cpu_affinity": (0, 1, 2, 64)}


def test_place_is_read_once_an_opening() -> None:
    """It does not change while the GPU is open, and is asked again after it was lost."""
    driver, placement = Driver(nvmlDeviceGetMinorNumber=5), Placement(Path("/nowhere"))
    ask = driver.opened()
    first = placement.read(ask, 100.0)
    driver.answers["nvmlDeviceGetMinorNumber"] = 6

    assert placement.read(ask, 10_000.0) == first == {"minor_number": 5}
    assert placement.read(driver.opened(), 10_001.0) == {"minor_number": 6}


TIMES_OUT = Fails(pynvml.NVML_ERROR_UNKNOWN)
List = Sequence[GpuProcess] | Fails


def lists(compute: List, graphics: List) -> Driver:
    return Driver(compute_processes=compute, graphics_processes=graphics)


@pytest.mark.parametrize(
    ("compute", "graphics", "told"),
    [
        (Fails(), Fails(), {}),
        (TIMES_OUT, TIMES_OUT, {}),  # An unknown list differs from an empty one.
        ([], [], {"processes": ()}),
        ([GpuProcess(8, 5, 2)], Fails(), {"processes": (GpuProcess(8, 5, 2),)}),
        # What draws and computes is one process, with the memory of the list that knows it.
        (
            [GpuProcess(7, None), GpuProcess(8, 5)],
            [GpuProcess(7, 3)],
            {"processes": (GpuProcess(7, 3), GpuProcess(8, 5))},
        ),
    ],
)
def test_both_lists_are_one(compute: List, graphics: List, told: dict[str, Any]) -> None:
    assert Processes().read(lists(compute, graphics).opened(), 100.0) == told


def test_lists_are_read_every_five_seconds() -> None:
    """Between two readings the last one holds; a process that ended is gone after the next."""
    driver, processes = lists([GpuProcess(8, 5)], []), Processes()
    ask = driver.opened()
    first = processes.read(ask, 100.0)
    driver.answers["compute_processes"] = []

    assert processes.read(ask, 104.9) == first
    assert processes.read(ask, 105.0) == {"processes": ()}


POWER, THERMAL = REASON_BITS["sw_power_cap"], REASON_BITS["hw_thermal_slowdown"]
POWER_FIELD = COUNTER_FIELDS["sw_power_cap"][0]
IDLE = 0x1


def gained(*readings: tuple[float, int, float | None]) -> list[float]:
    """Return by how much the power's seconds grow with each: time, mask and counter in ns."""
    throttle, seconds = ThrottleSeconds(longest_gap_seconds=2.0), [0.0]
    for now, reasons, counter in readings:
        throttle.add(reasons, {} if counter is None else {POWER_FIELD: counter}, now)
        seconds.append(throttle.seconds()["sw_power_cap"])
    return [after - before for before, after in pairwise(seconds)]


def test_each_active_reason_gains_the_time_since_the_last_reading() -> None:
    """Without counters, reasons that are active together count the whole time, the others none."""
    throttle = ThrottleSeconds(longest_gap_seconds=2.0)
    for now in (100.0, 101.0, 102.5):
        throttle.add(POWER | THERMAL, {}, now)
    throttle.add(IDLE, {}, 103.0)

    seconds = throttle.seconds()
    assert seconds["sw_power_cap"] == seconds["hw_thermal_slowdown"] == 2.5
    assert set(seconds) == set(REASON_BITS)
    assert sum(seconds.values()) == 5.0


@pytest.mark.parametrize(
    ("readings", "seconds"),
    [
        # After a gap only the time that one reading of the mask may stand for is added.
        ([(100.0, POWER, None), (200.0, POWER, None)], [0.0, 2.0]),
        # What the driver counted is exact: between two readings, half of what the mask says, and
        # through a gap.
        (
            [(0.0, 0, 9e9), (1.0, 0, 9.25e9), (2.0, POWER, 9.75e9), (12.0, 0, 19.75e9)],
            [0.0, 0.25, 0.5, 10.0],
        ),
        # A counter that appears, stays away, or starts anew is worth only what it grew since.
        (
            [
                (0.0, POWER, None),
                (1.0, POWER, 5e12),
                (2.0, POWER, 5e12 + 5e8),
                (3.0, POWER, None),
                (4.0, POWER, 5e12 + 17e8),
                (5.0, 0, 7.0),
            ],
            [0.0, 1.0, 0.5, 1.0, 1.0, 0.0],
        ),
        # One that stands still while the mask shows its reason at both ends is not believed.
        ([(float(n), POWER * (0 < n < 4), 7e9) for n in range(5)], [0.0, 0.0, 1.0, 1.0, 0.0]),
    ],
    ids=["gap", "exact", "comes and goes", "stands still"],
)
def test_counter_is_believed_before_the_mask(
    readings: list[tuple[float, int, float | None]], seconds: list[float]
) -> None:
    assert gained(*readings) == seconds


@pytest.mark.parametrize("reason", ["sw_thermal_slowdown", "hw_thermal_slowdown"])
@pytest.mark.parametrize("numbering", [0, 1], ids=["12.9 and 13.0", "13.1"])
def test_renumbered_counters_are_read_under_either_number(reason: str, numbering: int) -> None:
    """What has the number in the other numbering is a setting and adds nothing."""
    fields = COUNTER_FIELDS[reason]
    counter, setting = fields[numbering], fields[1 - numbering]
    throttle = ThrottleSeconds(longest_gap_seconds=2.0)
    throttle.add(0, {counter: 3e9, setting: 0.0}, 100.0)
    throttle.add(0, {counter: 3.5e9, setting: 50.0}, 101.0)
    assert throttle.seconds()[reason] == 0.5

    throttle.add(0, {counter: 3.5e9, setting: 1e12}, 102.0)
    throttle.add(0, {counter: 3.5e9, setting: 0.0}, 103.0)
    assert throttle.seconds()[reason] == pytest.approx(0.5)


WINDOW_SECONDS = 15.0
ANY_TIME = 1_700_000_000_000_000


@dataclass
class FakeDriver:
    """A driver with samples (its time in µs, percent) or an error code, and with rates or none."""

    samples: list[tuple[int, int]] | int = pynvml.NVML_ERROR_NOT_SUPPORTED
    rates: tuple[int, int] | None = (50, 40)
    asked_since: list[int] = field(default_factory=list)

    def get_rates(self, handle: object) -> Any:
        if self.rates is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=self.rates[0], memory=self.rates[1])

    def get_samples(self, handle: object, kind: int, since: int) -> Any:
        assert kind == pynvml.NVML_GPU_UTILIZATION_SAMPLES
        self.asked_since.append(since)
        if isinstance(self.samples, int):
            raise pynvml.NVMLError(self.samples)
        fresh = [sample for sample in self.samples if sample[0] > since]
        if not fresh:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        values = [pynvml.c_nvmlSample_t(time, (0,)) for time, _ in fresh]
        for value, (_, percent) in zip(values, fresh, strict=True):
            value.sampleValue.uiVal = percent
        return pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, values

    def sample(self, seconds: float, percent: int) -> None:
        """Take a sample *seconds* after ANY_TIME."""
        assert isinstance(self.samples, list)
        self.samples.append((ANY_TIME + round(seconds * 1e6), percent))


@pytest.fixture
def samples_driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A driver without samples."""
    fake = FakeDriver()
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", fake.get_rates)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetSamples", fake.get_samples)
    return fake


class Reads:
    """One GPU, read with times of the worker's clock."""

    def __init__(self) -> None:
        self._ask = Ask(0, object(), Calls(60.0, 60.0))
        self._utilization = Utilization(WINDOW_SECONDS)

    def all(self, now: float) -> dict[str, Any]:
        return self._utilization.read(self._ask, now)

    def busy(self, now: float) -> float:
        """Return the mean."""
        mean: float = self.all(now)["gpu_busy_percent"]
        return mean


def test_gpu_without_utilization_has_none(samples_driver: FakeDriver) -> None:
    """A GPU that is split by MIG has neither samples nor rates, and nothing is made up."""
    samples_driver.rates = None
    gpu = Reads()

    assert [gpu.all(float(now)) for now in range(20)] == [{}] * 20
    assert samples_driver.asked_since == [0]


def test_without_samples_the_rates_of_the_window_are_averaged(samples_driver: FakeDriver) -> None:
    """Each second's rate counts for the last 15 s and is then forgotten."""
    gpu = Reads()
    for now in range(100, 115):
        samples_driver.rates = (100, 30) if now < 110 else (40, 60)
        values = gpu.all(float(now))

    assert values == {"gpu_busy_percent": 80.0}
    assert gpu.busy(124.5) == 40.0


def test_samples_show_what_falls_between_two_readings(samples_driver: FakeDriver) -> None:
    """A dip of a fifth of a second is in the mean, though the rates never saw it.

    Samples from before the first reading leave the window by their own age.
    """
    samples_driver.samples, samples_driver.rates = [], (100, 40)
    gpu = Reads()
    for tick in range(50):
        samples_driver.sample(tick / 5, 0 if tick == 12 else 100)

    assert gpu.busy(100.0) == 98.0
    samples_driver.sample(18.0, 100)
    assert gpu.busy(108.0) == 100.0


def test_each_sample_counts_once_and_as_long_as_the_window(samples_driver: FakeDriver) -> None:
    """The driver is asked each 5 s for what is new; a sample leaves the window by its own age."""
    samples_driver.samples = []
    gpu, seen = Reads(), []
    for second in range(31):
        samples_driver.sample(second, 0 if second == 3 else 100)
        seen.append(gpu.busy(200.0 + second) < 100)

    assert samples_driver.asked_since == [
        0,
        *(ANY_TIME + second * 1_000_000 for second in range(0, 30, int(SAMPLES_EVERY_SECONDS))),
    ]
    assert seen == [False] * 5 + [True] * 15 + [False] * 11


def test_silent_driver_keeps_the_window_and_then_leaves_it_to_the_rates(
    samples_driver: FakeDriver,
) -> None:
    """No new samples for a while is no change; for longer than the window the rates stand in."""
    samples_driver.samples = []
    samples_driver.sample(0.0, 90)
    gpu = Reads()
    # From 116 on it is asked for all and gives the old sample again, none the newer for that.
    assert [gpu.busy(float(now)) for now in range(100, 160)] == [90.0] * 16 + [50] * 44


def test_clock_that_was_set_back_is_noticed(samples_driver: FakeDriver) -> None:
    """Samples are stamped with the driver's clock; an hour less does not cost an hour."""
    samples_driver.samples = []
    samples_driver.sample(3600.0, 90)
    gpu = Reads()
    assert gpu.busy(100.0) == 90.0
    samples_driver.samples = []
    for second in range(1, 31):
        samples_driver.sample(second, 70)
        busy = gpu.busy(100.0 + second)

    assert busy == 70.0


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT])
def test_no_new_samples_is_no_failure(samples_driver: FakeDriver, code: int) -> None:
    """A GPU with nothing new to tell has answered."""
    samples_driver.samples = code

    assert gpu_samples(object(), 1) == []


def test_empty_window_has_no_reading() -> None:
    window = ReadingWindow(15.0)

    assert window.mean() is None
