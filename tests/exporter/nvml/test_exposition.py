"""What Prometheus sees of the stub's GPUs, as golden files: well, and broken in every way."""

import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from exporter.collectors.catalog import COLLECTORS, Sources
from exporter.ingest.app import IngestCounts
from exporter.nvml.sample import GpuSample, MigDevice, NvmlSource
from exporter.nvml.supervisor import NvmlSupervisor
from exporter.ranks.store import RankStore
from exporter.settings import Settings
from tests import nvmlstub
from tests.exporter.nvml.fixed import expose, series
from tests.exporter.nvml.stub import (
    ONLY_SAMPLED_PCIE,
    PATIENT,
    QUICK,
    Scenario,
    Supervise,
    gpus,
    supervised,
    ups,
    wait_for,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "nvml"
MAX_SERIES_PER_GPU = 64  # The budget that docs/metrics.md promises.
MAX_SERIES_PER_MIG_DEVICE = 4  # On top, where a GPU is divided.

# What a clock decides: golden files have TIME for it.
TIMED = (
    "rankskew_nvml_sample_timestamp_seconds",
    "rankskew_nvml_worker_restarts_total",
    "rankskew_nvml_call_stuck_seconds",
    "rankskew_gpu_throttle_seconds_total",
)
# A driver of the time before GPM: former functions, former numbers of fields, and no newer ones.
OLD_DRIVER = (
    *ONLY_SAMPLED_PCIE,
    "nvmlDeviceGetMemoryInfo_v2 * 13",
    "nvmlDeviceGetCurrentClocksEventReasons * 13",
    "nvmlDeviceGetSamples * 3",
    *(f"field_{field} * 3" for field in (74, 76, 230, 269, 270, 271)),
    "field_252 0 =0",
    "field_252 1 +1e9",
)
# GPM is missing, and the counters of PCIe bytes are of 32 bits and go round in less than a second.
WRAPPING = (
    "nvmlGpmQueryDeviceSupport * 3",
    *(f"field_{field} * =4294967295" for field in (197, 198)),
)


def exposition(nvml: NvmlSource) -> str:
    """Return all GPU metrics, with what the clock decides replaced by TIME."""
    sources = Sources(Settings(), RankStore(), IngestCounts(), nvml)
    # rank_host takes the ids of processes from NVML, and shows nothing of a GPU; gpu_faults shows
    # no reading, and has a memory.
    others = ("rank_host", "gpu_faults")
    entries = (each for each in COLLECTORS if each.needs_nvml and each.name not in others)
    text = expose(*(entry.make(sources) for entry in entries))
    # A rate between two readings of a counter is as exact as the clock: it has many digits.
    timed = rf"^((?:{'|'.join(TIMED)})\S*) (?!0\.0$)\S+$|^(\S+pcie\S+_per_second\S+) \S{{13,}}$"
    return re.sub(timed, r"\1\2 TIME", text, flags=re.MULTILINE)


def is_complete(gpu: GpuSample, pcie_source: str = "gpm") -> bool:
    """Whether the readings that take longest are there, PCIe from its best source among them."""
    return (
        gpu.pcie_source == pcie_source
        and gpu.throttle_seconds is not None
        and bool(gpu.throttle_reasons) == any(gpu.throttle_seconds.values())
        and bool(gpu.nvlink_links)
        and gpu.xid_events is not None
    )


def mig_devices(supervisor: NvmlSupervisor) -> list[MigDevice]:
    return [part for gpu in gpus(supervisor) for part in gpu.mig_devices or ()]


def wait_until_complete(supervisor: NvmlSupervisor) -> None:
    wait_for(lambda: bool(gpus(supervisor)) and all(map(is_complete, gpus(supervisor))))


def assert_becomes_fixture(nvml: NvmlSource, name: str) -> str:
    """Have all GPU metrics become the golden file's; return them.

    The worker answers in pieces, so what it shows on the way there is not to be foreseen.
    RANKSKEW_WRITE_FIXTURES=1 writes the file instead.
    """
    path = FIXTURES / f"{name}.txt"
    if os.environ.get("RANKSKEW_WRITE_FIXTURES") == "1":
        path.write_text(exposition(nvml))
    text = ""
    deadline = time.monotonic() + 20
    while text != path.read_text() and time.monotonic() < deadline:
        text = exposition(nvml)
        time.sleep(0.02)
    assert text == path.read_text()
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text.replace(" TIME", " 1"),
        text=True,
        capture_output=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    return text


def test_node_without_driver(tmp_path: Path) -> None:
    """Without a driver the node exposes 0 GPUs and no series of a GPU."""
    with supervised(PATIENT, {"LD_LIBRARY_PATH": str(tmp_path)}) as supervisor:
        wait_for(lambda: supervisor.latest() is not None)

        assert_becomes_fixture(supervisor, "no_driver")


@pytest.mark.parametrize(("number", "name"), [(2, "two_gpus"), (8, "eight_gpus")])
def test_node_with_gpus(supervise: Supervise, number: int, name: str) -> None:
    """Every reading of every GPU is exposed, in base units, under names that promtool accepts."""
    supervisor = supervise(PATIENT, number)
    wait_until_complete(supervisor)

    assert_becomes_fixture(supervisor, name)


@pytest.mark.parametrize(
    ("name", "lines", "pcie_sources"),
    [
        ("old_driver", OLD_DRIVER, ["sampled", "sampled"]),
        ("wrapping", WRAPPING, ["sampled", "sampled"]),
        ("mig", ["nvmlDeviceGetMigMode 0 =1"], ["byte_counter", "gpm"]),
    ],
)
def test_driver_of_another_kind(
    supervise: Supervise,
    scenario: Scenario,
    name: str,
    lines: Sequence[str],
    pcie_sources: Sequence[str],
) -> None:
    """What such a driver cannot tell is absent or has another source, and the rest is there."""
    scenario.play(*lines)
    supervisor = supervise(PATIENT)
    wait_for(
        lambda: (
            [gpu.pcie_source for gpu in gpus(supervisor)] == pcie_sources
            and is_complete(gpus(supervisor)[1], pcie_sources[1])
            and all(part.sm_active_percent is not None for part in mig_devices(supervisor))
        )
    )

    assert len(mig_devices(supervisor)) == (2 if name == "mig" else 0)
    assert_becomes_fixture(supervisor, name)


@pytest.mark.parametrize(
    ("name", "line"), [("lost", "* 1 15"), ("hang", "nvmlDeviceGetPowerUsage 1 hang")]
)
def test_broken_gpu(
    supervise: Supervise,
    scenario: Scenario,
    caplog: pytest.LogCaptureFixture,
    name: str,
    line: str,
) -> None:
    """It is 0 under its own name, without readings, until it is back; the other has all of them.

    A hang is mended by a new worker, and named in the log; a lost GPU needs none.
    """
    supervisor = supervise(QUICK if name == "hang" else PATIENT)
    wait_until_complete(supervisor)
    scenario.play(line)
    # The worker of a driver that hangs is replaced again and again.
    wait_for(
        lambda: (
            ups(supervisor) == [True, False]
            and is_complete(gpus(supervisor)[0])
            and supervisor.worker_up
            and (supervisor.worker_restarts > 0) == (name == "hang")
        )
    )

    assert_becomes_fixture(supervisor, name)
    scenario.play()
    wait_for(lambda: ups(supervisor) == [True, True])
    assert (supervisor.worker_restarts > 0) == (name == "hang")
    said = "nvmlDeviceGetPowerUsage on GPU 1 has not returned for"
    assert (said in caplog.text) == (name == "hang")


def test_driver_that_crashed_once(supervise: Supervise, scenario: Scenario) -> None:
    """After a crash all is as it was, but for the count of restarts."""
    supervisor = supervise(PATIENT)
    wait_until_complete(supervisor)
    scenario.play("nvmlDeviceGetTemperature 1 crash")
    wait_for(lambda: supervisor.worker_restarts > 0)
    scenario.play()
    wait_for(lambda: supervisor.worker_up and ups(supervisor) == [True, True])
    wait_until_complete(supervisor)

    text = assert_becomes_fixture(supervisor, "segfault")
    assert "rankskew_nvml_worker_restarts_total TIME" in text


def test_gpus_that_tell_nothing_are_up_without_readings(
    supervise: Supervise, scenario: Scenario
) -> None:
    """Where the driver supports no reading the GPUs are counted and named, and nothing fails."""
    source = "".join(path.read_text() for path in nvmlstub.SOURCES)
    functions = set(re.findall(r"API int (nvml(?:DeviceGet|Gpm|Event)\w+)", source))
    opening = {f"nvmlDeviceGet{what}" for what in ("Count_v2", "HandleByIndex_v2", "UUID", "Name")}
    scenario.play(*(f"{function} * 3" for function in sorted(functions - opening)))
    supervisor = supervise(PATIENT)
    wait_for(lambda: ups(supervisor) == [True, True])

    text = assert_becomes_fixture(supervisor, "not_supported")
    assert "rankskew_gpus_visible 2.0" in series(text)
    assert {line.split("{")[0] for line in series(text) if "gpu=" in line} == {
        "rankskew_gpu_up",
        "rankskew_gpu_info",
    }


def test_series_per_gpu_stay_in_the_budget() -> None:
    """No GPU has more series than is promised, with three kinds of XID and two ranks on it."""
    text = (FIXTURES / "eight_gpus.txt").read_text()
    counts = Counter(re.findall(r'gpu="(\d+)"', "\n".join(series(text))))
    # Not played here: rank_info and foreign processes want ranks, three XIDs a sick GPU, and the
    # errors of PCIe the kernel's files.
    elsewhere = 2 + 3 + 1

    assert len(counts) == 8
    assert max(counts.values()) + elsewhere <= MAX_SERIES_PER_GPU


def test_series_per_mig_device_stay_in_the_budget() -> None:
    """A part of a GPU costs a few series of its own, and its GPU then has fewer."""
    lines = series((FIXTURES / "mig.txt").read_text())
    parts = Counter(re.findall(r'mig_uuid="([^"]+)"', "\n".join(lines)))
    left = {
        gpu: sum(f'gpu="{gpu}"' in line and "mig_uuid" not in line for line in lines)
        for gpu in (0, 1)
    }

    assert len(parts) == 2
    assert max(parts.values()) <= MAX_SERIES_PER_MIG_DEVICE
    assert left[0] < left[1]
