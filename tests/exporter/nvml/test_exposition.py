import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from exporter.collectors.gpu_clocks import GpuClocksCollector
from exporter.collectors.gpu_devices import GpuDevicesCollector
from exporter.collectors.gpu_memory import GpuMemoryCollector
from exporter.collectors.gpu_pcie import GpuPcieCollector
from exporter.collectors.gpu_power import GpuPowerCollector
from exporter.collectors.gpu_temperature import GpuTemperatureCollector
from exporter.collectors.gpu_throttle import GpuThrottleCollector
from exporter.collectors.gpu_utilization import GpuUtilizationCollector
from exporter.nvml.sample import NvmlSource
from exporter.nvml.supervisor import NvmlSupervisor
from tests import nvmlstub
from tests.exporter.nvml.fixed import expose, series
from tests.exporter.nvml.stub import PATIENT, Scenario, Supervise, gpus, supervised, ups, wait_for

FIXTURES = Path(__file__).parents[2] / "fixtures" / "nvml"
MAX_SERIES_PER_GPU = 64  # The budget that docs/metrics.md promises.


def exposition(nvml: NvmlSource) -> str:
    """Return all GPU metrics, with what the clock decides replaced by TIME."""
    text = expose(
        GpuDevicesCollector(nvml),
        GpuUtilizationCollector(nvml),
        GpuMemoryCollector(nvml),
        GpuPcieCollector(nvml),
        GpuClocksCollector(nvml),
        GpuThrottleCollector(nvml),
        GpuPowerCollector(nvml),
        GpuTemperatureCollector(nvml),
    )
    timed = r"^(rankskew_(?:nvml_sample_timestamp|gpu_throttle)_seconds\S*) (?!0\.0$)\S+$"
    return re.sub(timed, r"\1 TIME", text, flags=re.MULTILINE)


def is_complete(supervisor: NvmlSupervisor) -> bool:
    """Whether the readings that take longest are there: PCIe, and a second throttle reading."""
    sample = gpus(supervisor)
    return bool(sample) and all(
        gpu.pcie_receive_kilobytes_per_second is not None
        and gpu.throttle_seconds is not None
        and bool(gpu.throttle_reasons) == any(gpu.throttle_seconds.values())
        for gpu in sample
    )


def assert_matches_fixture(text: str, name: str) -> None:
    """Compare with the golden file; RANKSKEW_WRITE_FIXTURES=1 writes it instead."""
    path = FIXTURES / f"{name}.txt"
    if os.environ.get("RANKSKEW_WRITE_FIXTURES") == "1":
        path.write_text(text)
    assert text == path.read_text()


def assert_promtool_accepts(text: str) -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text.replace(" TIME", " 1"),
        text=True,
        capture_output=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_node_without_driver(tmp_path: Path) -> None:
    """Without a driver the node says so with 0 GPUs and exposes no series of a GPU."""
    with supervised(PATIENT, {"LD_LIBRARY_PATH": str(tmp_path)}) as supervisor:
        wait_for(lambda: supervisor.latest() is not None)
        text = exposition(supervisor)

    assert_matches_fixture(text, "no_driver")
    assert_promtool_accepts(text)


@pytest.mark.parametrize(("number", "name"), [(2, "two_gpus"), (8, "eight_gpus")])
def test_node_with_gpus(supervise: Supervise, number: int, name: str) -> None:
    """Every reading of every GPU is exposed, in base units, under names that promtool accepts."""
    supervisor = supervise(PATIENT, number)
    wait_for(lambda: is_complete(supervisor))
    text = exposition(supervisor)

    assert_matches_fixture(text, name)
    assert_promtool_accepts(text)


def test_gpus_that_tell_nothing_are_up_without_readings(
    supervise: Supervise, scenario: Scenario
) -> None:
    """Where the driver supports no reading the GPUs are counted and named, and nothing fails."""
    functions = set(re.findall(r"API int (nvmlDeviceGet\w+)", nvmlstub.SOURCE.read_text()))
    opening = {f"nvmlDeviceGet{what}" for what in ("Count_v2", "HandleByIndex_v2", "UUID", "Name")}
    scenario.play(*(f"{function} * 3" for function in sorted(functions - opening)))
    supervisor = supervise(PATIENT)
    wait_for(lambda: ups(supervisor) == [True, True])
    lines = series(exposition(supervisor))

    assert "rankskew_gpus_visible 2.0" in lines
    assert {line.split("{")[0] for line in lines if "gpu=" in line} == {
        "rankskew_gpu_up",
        "rankskew_gpu_info",
    }


def test_series_per_gpu_stay_in_the_budget() -> None:
    """No GPU has more series than is promised."""
    text = (FIXTURES / "eight_gpus.txt").read_text()
    counts = Counter(re.findall(r'gpu="(\d+)"', "\n".join(series(text))))

    assert len(counts) == 8
    assert max(counts.values()) <= MAX_SERIES_PER_GPU
