"""What each NVML call costs on this node's driver, and whether nvidia-smi agrees.

Reads every GPU as the exporter's worker does, for ROUNDS seconds, and times each call. Writes
results/nvml_costs.json; without a driver it prints that and exits 2.
"""

import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, ParamSpec, TypeVar

import pynvml

from benchmarks.report import show, write
from exporter.nvml.calls import Calls
from exporter.nvml.readings import several_calls
from exporter.nvml.sample import GpuSample
from exporter.nvml.timing import Timing
from exporter.nvml.worker.gpu import Gpu

P = ParamSpec("P")
T = TypeVar("T")

# Enough that what is read once a minute is read twice.
ROUNDS: Final = 70
PAUSE_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 60.0
NO_DRIVER: Final = "nvml_costs needs an NVIDIA driver, and NVML finds none here"

# nvidia-smi's name for a reading, the reading, and by how much two readings of it may differ.
SAME: Final[Sequence[tuple[str, Callable[[GpuSample], float | None], float]]] = (
    ("memory.total", lambda gpu: _mebibytes(gpu.memory_total_bytes), 1),
    ("memory.used", lambda gpu: _mebibytes(gpu.memory_used_bytes), 64),
    ("temperature.gpu", lambda gpu: gpu.gpu_temperature_celsius, 3),
    ("power.draw", lambda gpu: _thousandth(gpu.power_milliwatts), 50),
    ("enforced.power.limit", lambda gpu: _thousandth(gpu.power_limit_milliwatts), 1),
    ("clocks.max.sm", lambda gpu: gpu.sm_clock_max_megahertz, 0),
    ("pcie.link.gen.max", lambda gpu: gpu.pcie_link_generation_max, 0),
    ("pcie.link.width.current", lambda gpu: gpu.pcie_link_width, 0),
    ("ecc.errors.corrected.aggregate.total", lambda gpu: gpu.ecc_corrected_errors, 0),
    ("ecc.errors.uncorrected.aggregate.total", lambda gpu: gpu.ecc_uncorrected_errors, 0),
)


class TimedCalls(Calls):
    """Records how long each call took, including failed ones, by the name of its function."""

    def __init__(self) -> None:
        super().__init__(PATIENCE_SECONDS, PATIENCE_SECONDS)
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def __call__(
        self, gpu: int | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call through."""
        started = time.perf_counter()
        try:
            return super().__call__(gpu, function, *args, **kwargs)
        finally:
            self.seconds[function.__name__].append(time.perf_counter() - started)

    def rows(self, gpus: int, rounds: int) -> Iterator[dict[str, Any]]:
        """Yield a row for each function, the most time per second first."""
        for name, seconds in sorted(self.seconds.items(), key=lambda item: -sum(item[1])):
            yield {
                "call": name,
                "calls a second and GPU": len(seconds) / gpus / rounds,
                "median us": statistics.median(seconds) * 1e6,
                "slowest us": max(seconds) * 1e6,
                "ms a second and GPU": sum(seconds) * 1e3 / gpus / rounds,
            }


def read(calls: TimedCalls, rounds: int, pause_seconds: float) -> list[GpuSample]:
    """Read every GPU *rounds* times and return the last samples."""
    timing = Timing()
    count = calls(None, pynvml.nvmlDeviceGetCount)
    gpus = [
        Gpu(
            index,
            calls,
            timing.retry_seconds,
            several_calls.quick(timing),
            several_calls.slow(timing),
        )
        for index in range(count)
    ]
    samples = []
    for _ in range(rounds):
        samples = [gpu.read() for gpu in gpus]
        for gpu in gpus:
            gpu.read_slow()
        time.sleep(pause_seconds)
    return samples


def compared(sample: GpuSample, told: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each reading: ours, nvidia-smi's in *told*, and whether they agree."""
    for (name, reading, allowed), text in zip(SAME, told, strict=True):
        ours = reading(sample)
        theirs = float(text) if _is_number(text) else None
        agree = ours == theirs if None in (ours, theirs) else abs(ours - theirs) <= allowed  # type: ignore[operator]  # neither is None
        yield {
            "GPU": sample.index,
            "reading": name,
            "ours": ours,
            "nvidia-smi": theirs,
            "agree": agree,
        }


def ask_nvidia_smi(index: int) -> list[str]:
    """Return nvidia-smi's readings of one GPU, in the order of SAME."""
    query = "--query-gpu=" + ",".join(name for name, _, _ in SAME)
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", f"--id={index}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [cell.strip() for cell in told.strip().split(",")]


def main(rounds: int = ROUNDS, pause_seconds: float = PAUSE_SECONDS) -> int:
    """Measure and print; return 1 if nvidia-smi disagrees, 2 without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        print(f"{NO_DRIVER}: {error}", file=sys.stderr)
        return 2
    calls = TimedCalls()
    samples = read(calls, rounds, pause_seconds)
    write("nvml_costs", list(calls.rows(len(samples), rounds)), ["nvidia-ml-py"])
    if shutil.which("nvidia-smi") is None:
        print("nvidia-smi is not installed: nothing to compare with")
        return 0
    rows = [row for gpu in samples for row in compared(gpu, ask_nvidia_smi(gpu.index))]
    show(rows)
    return 0 if all(row["agree"] for row in rows) else 1


def _mebibytes(value: int | None) -> float | None:
    return None if value is None else value / 2**20


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


if __name__ == "__main__":
    sys.exit(main())
