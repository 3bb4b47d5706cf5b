"""What Prometheus sees of the stub's GPUs, as golden files: well, and broken in every way."""

import logging
import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.collectors.catalog import COLLECTORS, Sources
from exporter.collectors.gpu.readings import READINGS
from exporter.ingest.app import IngestCounts
from exporter.nvml.sample import NvmlSource
from exporter.nvml.timing import Timing
from exporter.ranks.store import RankStore
from exporter.settings import Settings
from tests import nvmlstub
from tests.exporter.collectors.host import page, write
from tests.exporter.nvml.drivers import (
    ONLY_SAMPLED_PCIE,
    PATIENT,
    QUICK,
    Scenario,
    Supervise,
    supervised,
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
    "nvmlGpmQueryDeviceSupport * =0",
    *(f"field_{field} * =4294967295" for field in (197, 198)),
)
# Memory, profile and activity of MIG devices need a right, a driver or a GPU that not all have.
RESTRICTED = (
    "nvmlDeviceGetMigMode * =1",
    "nvmlDeviceGetMemoryInfo_v2 * 4",
    "nvmlDeviceGetMemoryInfo 0 4",
    "nvmlDeviceGetName 0 3",
    "nvmlGpmQueryDeviceSupport 0 =0",
)
# A driver that knows its GPUs, and supports no reading.
OPENING = {f"nvmlDeviceGet{what}" for what in ("Count_v2", "HandleByIndex_v2", "UUID", "Name")}
FUNCTIONS = re.findall(
    r"API int (nvml(?:DeviceGet|Gpm|Event)\w+)",
    "".join(path.read_text() for path in nvmlstub.SOURCES),
)
SILENT = tuple(f"{function} * 3" for function in sorted({*FUNCTIONS} - OPENING))
HANG = "nvmlDeviceGetPowerUsage 1 hang"


def golden(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text()


def exposition(nvml: NvmlSource) -> str:
    """Return all GPU metrics, with what the clock decides replaced by TIME."""
    sources = Sources(Settings(), RankStore(), IngestCounts(), nvml)
    # rank_host takes the ids of processes from NVML, and shows nothing of a GPU; gpu_faults shows
    # no reading, and has a memory.
    others = ("rank_host", "gpu_faults")
    entries = (each for each in COLLECTORS if each.needs_nvml and each.name not in others)
    text = page(*(entry.make(sources) for entry in entries))
    # A rate between two readings of a counter is as exact as the clock: it has many digits.
    timed = rf"^((?:{'|'.join(TIMED)})\S*) (?!0\.0$)\S+$|^(\S+pcie\S+_per_second\S+) \S{{13,}}$"
    return re.sub(timed, r"\1\2 TIME", text, flags=re.MULTILINE)


def assert_becomes_fixture(nvml: NvmlSource, name: str) -> None:
    """Have all GPU metrics become the golden file's.

    The worker answers in pieces, so what it shows on the way there is not to be foreseen.
    RANKSKEW_WRITE_FIXTURES=1 writes the file if they do not.
    """
    path = FIXTURES / f"{name}.txt"
    text, deadline = "", time.monotonic() + 40
    while text != path.read_text() and time.monotonic() < deadline:
        text = exposition(nvml)
        time.sleep(PATIENT.interval_seconds)
    if os.environ.get("RANKSKEW_WRITE_FIXTURES") == "1":
        path.write_text(text)
    assert text == path.read_text()


@pytest.fixture
def sysfs(tmp_path: Path) -> str:
    """The kernel counts errors of the second GPU's link."""
    for kind, count in (("correctable", 40), ("nonfatal", 5), ("fatal", 1)):
        file = tmp_path / "bus/pci/devices/0000:11:00.0" / f"aer_dev_{kind}"
        write(file, f"Undefined 0\nTOTAL_ERR_X {count}\n")
    return str(tmp_path)


Story = tuple[Timing, list[tuple[Sequence[str], str]]]
# Each golden file is what all becomes while the stub plays the lines before it.
STORIES: dict[str, Story] = {
    "old driver": (PATIENT, [(OLD_DRIVER, "old_driver")]),
    "wrapping": (PATIENT, [(WRAPPING, "wrapping")]),
    # A GPU may be divided at any time.
    "MIG": (PATIENT, [((), "two_gpus"), (["nvmlDeviceGetMigMode 0 =1"], "mig")]),
    "restricted": (PATIENT, [(RESTRICTED, "mig_restricted")]),
    "not supported": (PATIENT, [(SILENT, "not_supported")]),
    # A lost GPU needs no new worker. In a container NVML may say 999 to all that is asked.
    "lost": (PATIENT, [((), "two_gpus"), (["* 1 15"], "lost"), ((), "two_gpus")]),
    "lost to the container": (PATIENT, [((), "two_gpus"), (["* 1 999"], "lost")]),
    # A hang is mended by a new worker, again and again; after it only their number is other.
    "hang": (QUICK, [([HANG], "hang"), ((), "restarted")]),
}


@pytest.mark.parametrize(("timing", "story"), STORIES.values(), ids=STORIES)
def test_page_of_a_node(
    supervise: Supervise,
    scenario: Scenario,
    sysfs: str,
    caplog: pytest.LogCaptureFixture,
    timing: Timing,
    story: Sequence[tuple[Sequence[str], str]],
) -> None:
    """What a driver tells is there in base units, what it does not tell is absent.

    A GPU that is lost or hangs is 0 under its own name, without readings, until it is back, and
    its neighbour has all of its own; the log names the call.
    """
    scenario.play(*story[0][0])
    supervisor = supervise(replace(timing, path_sysfs=sysfs))
    for lines, name in story:
        scenario.play(*lines)
        assert_becomes_fixture(supervisor, name)

    hangs = any(HANG in lines for lines, _ in story)
    assert ("nvmlDeviceGetPowerUsage on GPU 1 has not returned for" in caplog.text) == hangs


def test_page_of_a_node_without_a_driver(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is a normal node, and exposes 0 GPUs and no series of a GPU."""
    caplog.set_level(logging.INFO)
    with supervised(PATIENT, {"LD_LIBRARY_PATH": str(tmp_path)}) as supervisor:
        assert_becomes_fixture(supervisor, "no_driver")

    (reason,) = caplog.records
    assert reason.levelname == "INFO"


def test_every_metric_of_a_gpu_is_on_a_golden_page() -> None:
    """A row of READINGS that no driver of the stub's tells is not finished."""
    text = golden("two_gpus")
    rows = [row.name for rows in READINGS.values() for row in rows]
    # Nothing is broken there in such a way.
    rows.remove("rankskew_gpu_xid_errors_total")

    assert [name for name in rows if f"\n{name}{{" not in text] == []


def test_series_stay_in_the_budget() -> None:
    """No GPU has more series than is promised, with three kinds of XID and two ranks on it.

    A part of a GPU costs a few series of its own.
    """
    whole = Counter(re.findall(r'gpu="(\d+)"', golden("two_gpus")))
    parts = Counter(re.findall(r'mig_uuid="([^"]+)"', golden("mig")))
    # Not played here: rank_info and foreign processes want ranks, three XIDs a sick GPU.
    elsewhere = 2 + 3

    assert (len(whole), len(parts)) == (2, 2)
    assert max(whole.values()) + elsewhere <= MAX_SERIES_PER_GPU
    assert max(parts.values()) <= MAX_SERIES_PER_MIG_DEVICE
