"""What one GPU is asked, and what its answers mean: a table over a fake driver, and over time."""

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
from exporter.nvml.readings.one_call import decoder_utilization
from exporter.nvml.readings.processes import NO_INSTANCE
from exporter.nvml.readings.query import UNSUPPORTED_FOR_SECONDS
from exporter.nvml.readings.several_calls import quick, slow
from exporter.nvml.readings.throttle import COUNTER_FIELDS, ThrottleSeconds
from exporter.nvml.sample import REASON_BITS, GpuProcess, GpuSample
from exporter.nvml.timing import Timing
from exporter.nvml.worker.gpu import Gpu
from tests.exporter.collectors.host import write
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


def process(pid: int, used: int | None, instance: int = NO_INSTANCE) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used, gpuInstanceId=instance)


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
        # Videos and images have a decoder each; older GPUs and drivers lack that of images.
        (decoders(95, 30), {}, {"decoder_busy_percent": 95}),
        (decoders(40, Fails()), {}, {"decoder_busy_percent": 40}),
        # A container without sysfs: masks of 64 bits a word.
        (MASKS, {}, {"numa_node": 1, "cpu_affinity": (0, 1, 3, 64)}),
        ({"nvmlDeviceGetMemoryAffinity": [0b11]}, {}, {}),  # Near several.
        # The kernel knows better than NVML; its -1 is no node, nor NVML's.
        (PCI | MASKS, KERNEL, {"numa_node": 0, "cpu_affinity": (0, 1, 2, 64)}),
        (PCI | MASKS, KERNEL | {"gpu/numa_node": "-1\n"}, {"cpu_affinity": (0, 1, 2, 64)}),
        # An unknown list of processes differs from an empty one.
        (lists(UNKNOWN, UNKNOWN), {}, {}),
        (lists([], []), {}, {"processes": ()}),
        (lists([process(8, 5, 2)], Fails()), {}, {"processes": (GpuProcess(8, 5, 2),)}),
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
        [(0.0, 2**32 - 1, 2, {A: 2**32 - 1, B: 5})],
        [(0.0, LONG, 2, {A: 2**40, B: 5})],
        [(0.0, (pynvml.NVML_VALUE_TYPE_DOUBLE, "dVal", 0.5), 2, {A: 0.5, B: 5})],
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

    ask, values = Driver(nvmlDeviceGetFieldValues=tell).opened(), FieldValues([A, B])
    for now, answers[A], _, told in looks:
        assert values.read(ask, now) == told

    assert asked == [number for _, _, number, _ in looks]


def test_fields_that_all_fail() -> None:
    """A GPU that answers 999 to everything is not taken for one that lacks the fields.

    Those cost no value, no failure, and no call for an hour.
    """
    for b, failure, calls in ((Fails(), None, 1), (UNKNOWN, pynvml.NVML_ERROR_UNKNOWN, 2)):
        driver = Driver(nvmlDeviceGetFieldValues=fields({B: b}))
        ask, values = driver.opened(), FieldValues([A, B])

        assert values.read(ask, 0.0) == {} == values.read(ask, 1.0)
        assert (ask.failure and ask.failure.code, ask.has_answered) == (failure, False)
        assert driver.asked[FIELDS] == calls


def test_lost_gpu_is_told_by_any_of_its_answers() -> None:
    """One field of a call that succeeds, or a decoder of images that may be missing, but not so."""
    lost = Fails(pynvml.NVML_ERROR_GPU_IS_LOST)
    ask = Driver(nvmlDeviceGetFieldValues=fields({A: 5, B: lost}), **decoders(40, lost)).opened()

    with pytest.raises(CallFailed):
        FieldValues([A, B]).read(ask, 0.0)
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
