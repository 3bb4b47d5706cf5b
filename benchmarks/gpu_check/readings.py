"""Compares what the exporter exposes of a GPU under steady load with `nvidia-smi dmon`.

    python -m benchmarks.gpu_check.readings

Half of the time the GPU multiplies matrices; in between it copies from the host and back.
Writes results/gpu_readings.json; exits 1 if a reading is off by more than is allowed, 2 without a
CUDA device or nvidia-smi.
"""

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.gpu_check.figures import readings_table
from benchmarks.report import write
from devstack.parts import ExporterProcess
from devstack.process import get

SECONDS: Final = 20
# GPM's numbers, as nvmlGpmMetricId_t has them: dmon's last columns, in this order.
GPM: Final = {2: "SM active", 3: "SM occupancy", 5: "tensor", 10: "DRAM", 20: "tx", 21: "rx"}
# dmon's column, our series, the factor to dmon's unit, and how much the two means may differ:
# absolutely, and as a share of dmon's.
COMPARED: Final[Sequence[tuple[str, str, float, float, float]]] = (
    ("pwr", "rankskew_gpu_power_watts", 1, 10, 0.05),
    ("gtemp", 'rankskew_gpu_temperature_celsius{sensor="gpu"}', 1, 2, 0),
    ("mtemp", 'rankskew_gpu_temperature_celsius{sensor="memory"}', 1, 2, 0),
    ("sm", "rankskew_gpu_utilization_ratio", 100, 5, 0.05),
    ("mclk", 'rankskew_gpu_clock_hertz{clock="memory"}', 1e-6, 10, 0),
    ("pclk", 'rankskew_gpu_clock_hertz{clock="sm"}', 1e-6, 50, 0),
    ("fb", "rankskew_gpu_memory_used_bytes", 2**-20, 64, 0.02),
    ("SM active", "rankskew_gpu_sm_active_ratio", 100, 3, 0.05),
    ("SM occupancy", "rankskew_gpu_sm_occupancy_ratio", 100, 3, 0.05),
    ("tensor", "rankskew_gpu_tensor_active_ratio", 100, 3, 0.05),
    ("DRAM", "rankskew_gpu_dram_active_ratio", 100, 3, 0.05),
    ("tx", "rankskew_gpu_pcie_transmit_bytes_per_second", 2**-20, 20, 0.1),
    ("rx", "rankskew_gpu_pcie_receive_bytes_per_second", 2**-20, 20, 0.1),
)


def load(ended: threading.Event) -> None:
    """Keep the GPU busy for half of each 100 ms, until *ended*."""
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    host = torch.empty(2**26, dtype=torch.uint8, pin_memory=True)
    device = host.cuda()
    while not ended.is_set():
        began = time.monotonic()
        while time.monotonic() < began + 0.05:
            torch.mm(matrix, matrix)
            torch.cuda.synchronize()
        device.copy_(host)
        host.copy_(device)
        time.sleep(max(0.0, began + 0.1 - time.monotonic()))


def dmon(seconds: int) -> str:
    """Return what `nvidia-smi dmon` prints of the first GPU, one line a second."""
    numbers = ",".join(map(str, GPM))
    command = ["nvidia-smi", "dmon", "-i", "0", "-s", "pucm", f"--gpm-metrics={numbers}"]
    done = subprocess.run(
        [*command, "-c", str(seconds)], capture_output=True, text=True, check=True
    )
    return done.stdout


def columns(told: str) -> dict[str, list[float]]:
    """Return dmon's readings by column, GPM's by the names of `GPM`; "-" is left out."""
    lines = told.splitlines()
    names = next(line for line in lines if line.startswith("#")).lstrip("# ").split()
    names[-len(GPM) :] = GPM.values()
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        if line and not line.startswith("#"):
            for name, cell in zip(names, line.split(), strict=False):
                if re.fullmatch(r"[\d.]+", cell):
                    found[name].append(float(cell))
    return found


def of_series(scrape: str, series: str) -> float | None:
    """Return the first GPU's value of *series*, a name with or without one label."""
    name, _, label = series.partition("{")
    for line in scrape.splitlines():
        if line.startswith(f"{name}{{") and label.rstrip("}") in line:
            return float(line.rsplit(" ", 1)[1])
    return None


def rows(theirs: Mapping[str, Sequence[float]], scrapes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield both means of each reading, and whether they agree."""
    for column, series, unit, apart, share in COMPARED:
        values = [of_series(scrape, series) for scrape in scrapes]
        ours = [value * unit for value in values if value is not None]
        their = statistics.fmean(theirs[column]) if theirs.get(column) else None
        our = statistics.fmean(ours) if ours else None
        agree = (
            our is None if their is None else our is not None and _near(our, their, apart, share)
        )
        yield {"reading": series, "ours": our, "nvidia-smi": their, "agree": agree}


def _near(our: float, their: float, apart: float, share: float) -> bool:
    return abs(our - their) <= max(apart, share * their)


def every_series(directory: str) -> ExporterProcess:
    """Return an exporter that exposes all that it reads of a GPU."""
    return ExporterProcess(Path(directory), flags=["--series.detail=all"])


def measured() -> list[dict[str, Any]]:
    """Read both over the same time while the GPU is under load; return the rows."""
    ended = threading.Event()
    busy = threading.Thread(target=load, args=(ended,))
    busy.start()
    told: list[str] = []
    scrapes = []
    with tempfile.TemporaryDirectory() as directory, every_series(directory) as exporter:
        time.sleep(15)  # the exporter's means reach back over its window
        asked = threading.Thread(target=lambda: told.append(dmon(SECONDS)))
        asked.start()
        while asked.is_alive():
            time.sleep(1)
            scrapes.append(get(f"{exporter.url}/metrics").decode())
        asked.join()
    ended.set()
    busy.join()
    print(told[0])
    return list(rows(columns(told[0]), scrapes))


def main() -> int:
    """Measure and print; return the exit code."""
    if not torch.cuda.is_available() or shutil.which("nvidia-smi") is None:
        print("gpu_check.readings needs a CUDA device and nvidia-smi.", file=sys.stderr)
        return 2
    found = measured()
    packages = ("torch", "nvidia-ml-py")
    made = {"gpu_readings": readings_table}
    write("gpu_readings", found, packages, torch.cuda.get_device_name(), made)
    return 0 if all(row["agree"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
