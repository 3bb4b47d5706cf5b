"""What one GPU is asked, and what its answers mean: a table over a fake driver, and over time.

How busy it was by the driver's samples, and by profiling counters. Its parts, with MIG, are on a
golden page.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.nvml.calls import CallFailed
from exporter.nvml.readings.fields import Field, FieldValues
from exporter.nvml.readings.gpm import (
    ACTIVITY,
    FIRST_SECONDS,
    METRICS,
    PCIE,
    SAMPLE_SECONDS,
    Gpm,
    Memory,
    gpm_metrics,
)
from exporter.nvml.readings.nvlink import ALL_LINKS
from exporter.nvml.readings.one_call import decoder_utilization
from exporter.nvml.readings.query import UNSUPPORTED_FOR_SECONDS
from exporter.nvml.readings.several_calls import quick, slow
from exporter.nvml.readings.throttle import COUNTER_FIELDS, ThrottleSeconds
from exporter.nvml.readings.utilization import Utilization
from exporter.nvml.sample import REASON_BITS, GpuProcess, GpuSample
from exporter.nvml.timing import Timing
from exporter.nvml.worker.gpu import Gpu
from tests.exporter.collectors.host import write
from tests.exporter.node import Clock
from tests.exporter.nvml.drivers import TIMES_OUT, Driver, Fails, FieldAnswer, fields

BUS_ID = "0000:1b:00.0"
PCI = {"nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:1B:00.0")}
MASKS = {"nvmlDeviceGetMemoryAffinity": [0b10, 0], "nvmlDeviceGetCpuAffinity": [0b1011, 0b1]}
KERNEL = {"gpu/local_cpulist": "0-2,64\n", "gpu/numa_node": "0\n"}
UTILIZATION = "nvmlDeviceGetUtilizationRates"
UNKNOWN = Fails(pynvml.NVML_ERROR_UNKNOWN)


def errors(correctable: int, nonfatal: int = 0, fatal: int = 0, of: str = "gpu") -> dict[str, str]:
    """Return the kernel's files: the total is of messages, and may be below the sum of errors."""
    return {
        f"{of}/aer_dev_correctable": f"Bad TLP 2\nTOTAL_ERR_COR {correctable}\n",
        f"{of}/aer_dev_nonfatal": f"Undefined 0\nTOTAL_ERR_NONFATAL {nonfatal}\n",
        f"{of}/aer_dev_fatal": f"Undefined 0\nTOTAL_ERR_FATAL {fatal}\n",
    }


def sysfs(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files of a GPU ("gpu/..."), of the port above it, and of its neighbour."""
    port = folder / "devices" / "port"
    places = {"gpu": port / BUS_ID, "port": port, "neighbour": port / "0000:1b:00.1"}
    for name, text in files.items():
        of, _, file = name.partition("/")
        write(places[of] / file, text)
    link = folder / "bus/pci/devices" / BUS_ID
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(places["gpu"])
    return folder


def decoders(video: int, images: Any) -> dict[str, Any]:
    told = images if isinstance(images, Fails) else (images, 167_000)
    return {
        "nvmlDeviceGetDecoderUtilization": (video, 167_000),
        "nvmlDeviceGetJpgUtilization": told,
    }


def fabric(state: int, status: int = 0, older: str = "V") -> dict[str, Any]:
    """Answer as a GPU whose registration with the fabric has this *state* and *status*."""

    def tell(handle: object, info: Any) -> None:
        info._obj.state, info._obj.status = state, status

    unknown = {"nvmlDeviceGetGpuFabricInfoV": Fails(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)}
    return unknown | {f"nvmlDeviceGetGpuFabricInfo{older}": tell}


def process(pid: int, used: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def lists(compute: Any, graphics: Any) -> dict[str, Any]:
    return {
        "nvmlDeviceGetComputeRunningProcesses": compute,
        "nvmlDeviceGetGraphicsRunningProcesses": graphics,
    }


COUNTED = "gpu/aer_dev_correctable"
OF_BOTH_ENDS = errors(40, 5, 1) | errors(500, of="port") | errors(9000, of="neighbour")
DAMAGED = ("TOTAL_ERR_COR many\n", "Bad TLP 3\n")


# What the driver answers, the kernel's files, and fields of the sample.
@pytest.mark.parametrize(
    ("answers", "files", "expected"),
    [
        ({}, {}, {}),
        ({"nvmlDeviceGetPerformanceState": 32}, {}, {}),  # An unknown one.
        # Videos and images have a decoder each; older GPUs and drivers lack that of images.
        (decoders(95, 30), {}, {"decoder_busy_percent": 95}),
        (decoders(40, Fails()), {}, {"decoder_busy_percent": 40}),
        # Without NVSwitch there is no fabric (0), or nobody begins (1).
        *((fabric(*fine), {}, {}) for fine in ((0, 3), (1, 3), (3, 0))),
        (fabric(2, 3), {}, {"fabric_trouble": "in progress"}),
        (fabric(3, 999, older=""), {}, {"fabric_trouble": "error 999"}),
        # A container without sysfs: masks of 64 bits a word.
        (MASKS, {}, {"numa_node": 1, "cpu_affinity": (0, 1, 3, 64)}),
        ({"nvmlDeviceGetMemoryAffinity": [0b11]}, {}, {}),  # Near several.
        # The kernel knows better than NVML; its -1 is no node, nor NVML's.
        (PCI | MASKS, KERNEL, {"numa_node": 0, "cpu_affinity": (0, 1, 2, 64)}),
        (PCI | MASKS, KERNEL | {"gpu/numa_node": "-1\n"}, {"cpu_affinity": (0, 1, 2, 64)}),
        # An unknown list of processes differs from an empty one.
        (lists(UNKNOWN, UNKNOWN), {}, {}),
        (lists([], []), {}, {"processes": ()}),
        (lists([process(8, 5)], Fails()), {}, {"processes": (GpuProcess(8, 5),)}),
        # What draws and computes is one process, with the memory of the list that knows it.
        (
            lists([process(7, None), process(8, 5)], [process(7, 3), process(8, 6)]),
            {},
            {"processes": (GpuProcess(7, 3), GpuProcess(8, 5))},
        ),
        # What the GPU sends damaged, only the port that receives it can count.
        (PCI, OF_BOTH_ENDS, {"pcie_errors": 546}),
        ({}, errors(40), {}),  # Whose?
        # A sum without its largest part would look like a reset.
        *((PCI, errors(40, 5) | {COUNTED: text}, {}) for text in DAMAGED),
    ],
)
def test_answers_of_the_driver(
    tmp_path: Path, answers: dict[str, Any], files: dict[str, str], expected: dict[str, Any]
) -> None:
    """Each reading is what NVML or the kernel says of the GPU, and absent where neither knows."""
    driver = Driver(**answers, nvmlDeviceGetPowerUsage=650_000)
    timing = Timing(path_sysfs=str(sysfs(tmp_path, files)))
    gpu = Gpu(0, driver, 60.0, quick(timing), slow(timing))
    sample = replace(gpu.read(), **gpu.read_slow())

    told = {each.name: getattr(sample, each.name) for each in fields_of(GpuSample)}
    known = {name: value for name, value in told.items() if value is not None and value != ""}
    always = {"index": 0, "up": True, "power_milliwatts": 650_000}
    identity = {"pci_bus_id": "00000000:1B:00.0"} if "nvmlDeviceGetPciInfo" in answers else {}
    assert known == always | identity | expected


A, B = (1, 0), (2, 0)
FIELDS = "nvmlDeviceGetFieldValues"
LONG = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, "ullVal", 2**40)


# Each reading of fields A and B: seconds, what A answers, how many are asked, and what is told.
FieldLook = tuple[float, FieldAnswer, int, dict[Any, float]]


def never(answer: FieldAnswer) -> list[FieldLook]:
    """What this GPU does not have costs the others nothing, and is tried again in an hour."""
    later: FieldLook = (UNSUPPORTED_FOR_SECONDS, 7, 2, {A: 7, B: 5})
    return [(0.0, answer, 2, {B: 5}), (1.0, 7, 1, {B: 5}), later]


@pytest.mark.parametrize(
    "looks",
    [
        # Each is read as its own type; a scope is part of the field, and one call asks for all.
        [(0.0, LONG, 2, {A: 2**40, B: 5})],
        never(Fails()),
        never(Fails(pynvml.NVML_ERROR_INVALID_ARGUMENT)),  # An unknown number.
        never((pynvml.NVML_VALUE_TYPE_COUNT, "ullVal", 1)),  # An unknown type.
        # One that is not available now is read again the next time.
        [(0.0, TIMES_OUT, 2, {B: 5}), (1.0, 7, 2, {A: 7, B: 5})],
    ],
)
def test_fields_are_read_in_one_call(looks: list[FieldLook]) -> None:
    answers: dict[Any, FieldAnswer] = {B: 5}
    asked: list[int] = []

    def tell(handle: object, of: Sequence[Field]) -> Any:
        asked.append(len(of))
        return fields(answers)(handle, of)

    ask, values = Driver(nvmlDeviceGetFieldValues=tell).opened(), FieldValues()
    for now, answers[A], _, told in looks:
        assert values.read(ask, now, [A, B]) == told

    assert asked == [number for _, _, number, _ in looks]


def test_fields_that_all_fail() -> None:
    """A GPU that answers 999 to everything is not taken for one that lacks the fields.

    Those cost no value, no failure, and no call for an hour.
    """
    for b, failure, calls in ((Fails(), None, 1), (UNKNOWN, pynvml.NVML_ERROR_UNKNOWN, 2)):
        driver = Driver(nvmlDeviceGetFieldValues=fields({B: b}))
        ask, values = driver.opened(), FieldValues()

        assert values.read(ask, 0.0, [A, B]) == {} == values.read(ask, 1.0, [A, B])
        assert (ask.failure and ask.failure.code, ask.has_answered) == (failure, False)
        assert driver.asked[FIELDS] == calls


def test_lost_gpu_is_told_by_any_of_its_answers() -> None:
    """One field of a call that succeeds, or a decoder of images that may be missing, but not so."""
    lost = Fails(pynvml.NVML_ERROR_RESET_REQUIRED)
    ask = Driver(nvmlDeviceGetFieldValues=fields({A: 5, B: lost}), **decoders(40, lost)).opened()

    with pytest.raises(CallFailed):
        FieldValues().read(ask, 0.0, [A, B])
    with pytest.raises(CallFailed):
        ask(decoder_utilization)


POWER, THERMAL = REASON_BITS["sw_power_cap"], REASON_BITS["hw_thermal_slowdown"]
POWER_FIELD = COUNTER_FIELDS["sw_power_cap"][0]


# Each reading is its time, the mask, the counter in ns, and the seconds that it adds.
@pytest.mark.parametrize(
    "readings",
    [
        # Reasons that are active together count the whole time, the others none.
        [(0.0, POWER | THERMAL, None, 0.0), (1.5, POWER | THERMAL, None, 1.5), (2.0, 1, None, 0.0)],
        # After a gap only the time that one reading of the mask may stand for is added.
        [(100.0, POWER, None, 0.0), (200.0, POWER, None, 2.0)],
        # What the driver counted is exact: between two readings, half of what the mask says, and
        # through a gap.
        [
            (0.0, 0, 9e9, 0.0),
            (1.0, 0, 9.25e9, 0.25),
            (2.0, POWER, 9.75e9, 0.5),
            (12.0, 0, 19.75e9, 10.0),
        ],
        # A counter that appears, stays away, or starts anew is worth only what it grew since.
        [
            (0.0, POWER, None, 0.0),
            (1.0, POWER, 5e12, 1.0),
            (2.0, POWER, 5e12 + 5e8, 0.5),
            (3.0, POWER, None, 1.0),
            (4.0, POWER, 5e12 + 17e8, 1.0),
            (5.0, 0, 7.0, 0.0),
        ],
        # One that stands still while the mask shows its reason at both ends is not believed.
        [(0.0, 0, 7e9, 0.0), (1.0, POWER, 7e9, 0.0), (2.0, POWER, 7e9, 1.0), (3.0, 0, 7e9, 0.0)],
    ],
    ids=["together", "gap", "exact", "comes and goes", "stands still"],
)
def test_counter_is_believed_before_the_mask(
    readings: list[tuple[float, int, float | None, float]],
) -> None:
    throttle, told = ThrottleSeconds(longest_gap_seconds=2.0), [0.0]
    for now, reasons, counter, _ in readings:
        throttle.add(reasons, {} if counter is None else {POWER_FIELD: counter}, now)
        told.append(throttle.seconds()["sw_power_cap"])

    assert [after - before for before, after in pairwise(told)] == [each[3] for each in readings]


@pytest.mark.parametrize("reason", ["sw_thermal_slowdown", "hw_thermal_slowdown"])
@pytest.mark.parametrize("numbering", [0, 1], ids=["12.9 and 13.0", "13.1"])
def test_renumbered_counters_are_read_under_either_number(reason: str, numbering: int) -> None:
    """What has the number in the other numbering is a setting and adds nothing."""
    counter, setting = COUNTER_FIELDS[reason][numbering], COUNTER_FIELDS[reason][1 - numbering]
    throttle = ThrottleSeconds(longest_gap_seconds=2.0)
    told = []
    for now, setting_is in enumerate((0.0, 50.0, 1e12, 0.0)):
        throttle.add(0, {counter: 3e9 + 5e8 * (now > 0), setting: setting_is}, 100.0 + now)
        told.append(throttle.seconds()[reason])

    assert told == [0.0, 0.5, 0.5, 0.5]


SM, DRAM = pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL


class Reads:
    """A GPU that is read now and then; each metric tells its busy share of the time in between."""

    def __init__(self, window_seconds: float = 15.0) -> None:
        self.driver = Driver(
            gpm_support=True,
            gpm_memory=lambda: Memory({}),
            gpm_sample=self.take,
            gpm_metrics=self.compare,
        )
        self.ask = self.driver.opened()
        self.gpm = Gpm(window_seconds)
        self.now = 0.0
        self.busy_seconds = 100.0

    def take(self, handle: object, sample: Memory) -> Memory:
        sample.pointer.update(now=self.now, busy=self.busy_seconds)
        return sample

    def compare(self, earlier: Memory, later: Memory) -> dict[int, float]:
        seconds, busy = (later.pointer[each] - earlier.pointer[each] for each in ("now", "busy"))
        return dict.fromkeys(METRICS, 100 * busy / seconds)

    def after(self, seconds: float, busy_seconds: float = 0.0) -> dict[str, Any]:
        """Let time go by, and return what is told then."""
        self.now += seconds
        self.busy_seconds += busy_seconds
        return self.gpm.read(self.ask, self.now)

    def may_tell(self) -> set[int]:
        return {metric for metric in METRICS if self.gpm.may_tell(metric)}


# Each reading: seconds since the one before, the busy ones among them, and the percentage told.
@pytest.mark.parametrize(
    ("window_seconds", "reads"),
    [
        # A burst of a third of the time is a third, although it is over at each reading. The first
        # second was short, so it does not weigh as much as five.
        (15.0, [(0, 0, None), (1, 0.3, 30), (SAMPLE_SECONDS, 2, 40), (SAMPLE_SECONDS, 1, 30)]),
        # What is older than the window no longer counts.
        (
            3.0,
            [(1, 0, None), *[(1, 1, 100)] * 3, (1, 0.2, 220 / 3), (1, 0.4, 160 / 3), (1, 0.3, 30)],
        ),
        # After a minute the next two samples are compared, and not those a minute apart.
        (15.0, [(0, 0, None), (1, 0.9, 90), (60, 60, None), (1, 0.2, 20)]),
        # Not even for the first reading are two samples closer than the counters are refreshed.
        (15.0, [(0, 0, None), (FIRST_SECONDS - 0.01, 0.1, None), (0.02, 0, 100 * 0.1 / 0.21)]),
    ],
    ids=["bursts", "window", "silence", "refresh"],
)
def test_activity_is_the_mean_over_the_window(
    window_seconds: float, reads: list[tuple[float, float, float | None]]
) -> None:
    gpu = Reads(window_seconds)
    for seconds, busy, told in reads:
        assert gpu.after(seconds, busy) == pytest.approx(
            {} if told is None else dict.fromkeys(ACTIVITY.values(), told)
        )

    assert [gpu.gpm.mean(metric) for metric in PCIE] == pytest.approx([told] * 2)
    assert gpu.may_tell() == set(METRICS)


def test_gpu_that_was_reset_is_not_compared_with_what_it_was() -> None:
    """Its counters may have restarted at 0. Opened again, it takes no more of NVML's memory."""
    gpu = Reads()
    for _ in range(3):
        gpu.ask = gpu.driver.opened()
        gpu.busy_seconds = 0.0
        assert gpu.after(1.0) == {}
        assert gpu.after(1.0, 0.5)["sm_active_percent"] == pytest.approx(50.0)

    assert gpu.driver.asked["gpm_memory"] == 2


@pytest.mark.parametrize("function", ["gpm_support", "gpm_sample", "gpm_metrics", "gpm_memory"])
def test_gpu_that_only_seems_to_have_gpm_tells_nothing(function: str) -> None:
    """Those before Hopper refuse at once, virtual machines when a sample is taken."""
    gpu = Reads()
    gpu.driver.answers[function] = Fails()

    assert [gpu.after(SAMPLE_SECONDS, 0.5) for _ in range(5)] == [{}] * 5
    assert gpu.may_tell() == set()
    assert gpu.driver.asked[function] <= 2  # The samples change places once.


@pytest.mark.parametrize("function", ["gpm_sample", "gpm_metrics"])
def test_failure_that_passes_is_no_reading_once(function: str) -> None:
    """After a timeout the next reading covers all the time, and no other source is tried."""
    gpu = Reads()
    gpu.after(0.0)
    assert gpu.after(1.0, 0.2) != {}
    answer = gpu.driver.answers[function]
    gpu.driver.fail(function, code=pynvml.NVML_ERROR_TIMEOUT)
    assert gpu.after(SAMPLE_SECONDS, 2.4) == {}
    assert gpu.may_tell() == set(METRICS)
    gpu.driver.answers[function] = answer

    assert gpu.after(1.0)["sm_active_percent"] == pytest.approx(240 / (SAMPLE_SECONDS + 1.0))


def test_each_metric_has_a_result_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that failed, or is not a number, is left out, and takes no other with it."""

    def answer(request: Any) -> None:
        assert request.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        assert request.numMetrics == len(METRICS)
        for index in range(request.numMetrics):
            entry = request.metrics[index]
            entry.value = math.nan if entry.metricId == SM else entry.metricId + 0.5
            entry.nvmlReturn = pynvml.NVML_ERROR_UNKNOWN if entry.metricId == DRAM else 0

    monkeypatch.setattr(pynvml, "nvmlGpmMetricsGet", answer)
    told = gpm_metrics(*[Memory(pynvml.c_nvmlGpmSample_t()) for _ in range(2)])

    assert told == {metric: metric + 0.5 for metric in METRICS if metric not in (SM, DRAM)}


ANY_TIME = 1_700_000_000_000_000


class Samples(Driver):
    """A driver with samples (its time in µs, percent) or without such a call, and with rates."""

    def __init__(self, samples: list[tuple[int, int]] | Fails) -> None:
        super().__init__(nvmlDeviceGetSamples=self.get)
        self.samples = samples
        self.rates(50)
        self.asked_since: list[int] = []
        self._ask, self._utilization = self.opened(), Utilization(15.0)

    def rates(self, percent: int) -> None:
        self.answers[UTILIZATION] = SimpleNamespace(gpu=percent)

    def get(self, handle: object, kind: int, since: int) -> Any:
        assert kind == pynvml.NVML_GPU_UTILIZATION_SAMPLES
        self.asked_since.append(since)
        if isinstance(self.samples, Fails):
            raise self.samples
        fresh = [sample for sample in self.samples if sample[0] > since]
        if not fresh:
            raise Fails(pynvml.NVML_ERROR_NOT_FOUND)
        return pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, [
            SimpleNamespace(timeStamp=time, sampleValue=SimpleNamespace(uiVal=percent))
            for time, percent in fresh
        ]

    def busy(self, now: float) -> float | None:
        """Return the mean at a time of the worker's clock."""
        return self._utilization.read(self._ask, now).get("gpu_busy_percent")


def at(seconds: float, percent: int) -> tuple[int, int]:
    """A sample so many seconds after ANY_TIME."""
    return ANY_TIME + round(seconds * 1e6), percent


def test_without_samples_the_rates_of_the_window_are_averaged() -> None:
    """Each second's rate counts for the last 15 s and is then forgotten.

    A driver may call it invalid to have nothing new. A GPU that is split by MIG has neither, and
    nothing is made up.
    """
    gpu, told = Samples(Fails(pynvml.NVML_ERROR_INVALID_ARGUMENT)), []
    for now in range(100, 115):
        gpu.rates(100 if now < 110 else 40)
        told.append(gpu.busy(float(now)))

    assert told[-1] == 80.0
    assert gpu.busy(124.5) == 40.0
    gpu.answers[UTILIZATION] = Fails()
    assert gpu.busy(125.0) is None


def test_each_sample_counts_once_and_as_long_as_the_window() -> None:
    """The driver is asked each 5 s for what is new; a sample leaves the window by its own age.

    A dip of a fifth of a second is in the mean, though the rates never saw it.
    """
    samples: list[tuple[int, int]] = []
    gpu, told = Samples(samples), []
    for second in range(31):
        samples += [at(second + n / 5, 0 if (second, n) == (3, 0) else 100) for n in range(5)]
        told.append(gpu.busy(200.0 + second))

    assert gpu.asked_since == [
        0,
        *(ANY_TIME + second * 1_000_000 + 800_000 for second in (0, 5, 10, 15, 20, 25)),
    ]
    assert [busy is not None and busy < 100 for busy in told] == [
        *[False] * 5,
        *[True] * 15,
        *[False] * 11,
    ]
    assert told[5] == pytest.approx(100 * 29 / 30)


def test_silent_driver_keeps_the_window_and_then_leaves_it_to_the_rates() -> None:
    """No new samples for a while is no change; for longer than the window the rates stand in.

    Samples are stamped with the driver's clock; an hour less does not cost an hour.
    """
    gpu = Samples([at(3600.0, 90)])
    # From 116 on it is asked for all and gives the old sample again, none the newer for that.
    assert [gpu.busy(float(now)) for now in range(100, 160)] == [90.0] * 16 + [50] * 44

    for second in range(30):
        gpu.samples = [at(second, 70)]
        busy = gpu.busy(160.0 + second)
    assert busy == 70.0


# What an H100 that trains is asked in a minute, by function and by field: the budget.
ASKED_A_MINUTE = {
    72: "ClockInfo",
    60: "CurrentClocksEventReasons MemoryInfo PowerUsage Temperature",
    36: "NvLinkState 161 162 163",
    28: "FieldValues",
    24: "PerformanceState",
    12: "UtilizationRates Samples DecoderUtilization JpgUtilization ComputeRunningProcesses "
    "GraphicsRunningProcesses MigMode CurrPcieLinkGeneration CurrPcieLinkWidth 138 139",
    6: "74 76 251 252 253 82 TotalEnergyConsumption PcieReplayCounter",
    4: "TotalEccErrors",
    2: "EnforcedPowerLimit RemappedRows GpuFabricInfoV 230 202 204",
    1: "MaxPcieLinkGeneration MaxPcieLinkWidth",
}
BUDGET = {name: times for times, names in ASKED_A_MINUTE.items() for name in names.split()}
H100: dict[str, Any] = dict.fromkeys((f"nvmlDeviceGet{name}" for name in BUDGET), 1) | {
    "nvmlDeviceGetNvLinkState": lambda _, link: 1 if link < 18 else Fails(),
    **(decoders(0, 0) | fabric(3) | lists([], [])),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80, used=40),
    "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
    "nvmlDeviceGetMigMode": (0, 0),
    "gpm_support": True,
    "gpm_memory": lambda: Memory({}),
    "gpm_sample": lambda _, sample: sample,
    "gpm_metrics": lambda *_: dict.fromkeys(METRICS, 50.0),
}
H100_FIELDS: dict[Field, FieldAnswer] = {
    **{(field, 0): 0 for field in (74, 76, 82, 230, 251, 252, 253)},
    **{(field, ALL_LINKS): 0 for field in (138, 139)},
    **{(field, link): 0 for field in (161, 162, 163) for link in range(18)},
}


@pytest.mark.parametrize(
    ("reasons", "more"), [(0, {}), (POWER, {"FieldValues": 82, "74": 60})], ids=["well", "capped"]
)
def test_calls_stay_in_the_budget(
    monkeypatch: pytest.MonkeyPatch, reasons: int, more: dict[str, int]
) -> None:
    """One takes the driver up to milliseconds, so what changes slowly is asked seldom.

    No time is lost in between: this GPU is throttled for a tenth of it, whatever the mask shows.
    """
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    samples: list[tuple[int, int]] = []
    driver = Samples(samples)

    def tell(handle: object, of: Sequence[Field]) -> Any:
        driver.asked.update(str(field) for field, _ in of)
        return fields(H100_FIELDS | {POWER_FIELD: (*LONG[:2], int(clock() * 1e8))})(handle, of)

    mask = {"nvmlDeviceGetCurrentClocksEventReasons": reasons, FIELDS: tell}
    driver.answers = H100 | driver.answers | mask
    gpu = Gpu(0, driver, 60.0, quick(timing := Timing(path_sysfs="/nowhere")), slow(timing))
    throttled = []
    for _ in range(2):
        driver.asked.clear()
        for _ in range(60):
            clock.seconds += 1.0
            samples.append(at(clock.seconds, 90))
            sample = replace(gpu.read(), **gpu.read_slow())
        throttled.append((sample.throttle_seconds or {})["sw_power_cap"])

    asked = {name.removeprefix("nvmlDeviceGet"): times for name, times in driver.asked.items()}
    assert {name: asked[name] for name in asked if not name[0].islower()} == BUDGET | more
    assert throttled[1] - throttled[0] == pytest.approx(6.0)
