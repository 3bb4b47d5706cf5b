"""The checks on a GPU as far as they go without one: their verdicts, and that the loops run."""

import contextlib
import functools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check import ranks
from benchmarks.gpu_check import training as looping
from benchmarks.gpu_check.figures import Row, at_most, equal, exit_code, near, profiled_ms, told
from benchmarks.gpu_check.training import Faults, Training
from benchmarks.nvml_costs import SAME, compared
from exporter.nvml.sample import GpuSample


@pytest.mark.parametrize(
    ("row", "passed"),
    [
        (near("a stage", 102.9, 100), "yes"),
        (near("a stage", 103.1, 100), "NO"),
        (near("a stage", 96.9, 100), "NO"),
        (near("a short stage", 0.04, 0), "yes"),
        (near("a short stage", 0.06, 0), "NO"),
        (at_most("overhead", "µs", 99, 100), "yes"),
        (at_most("overhead", "µs", 101, 100), "NO"),
        (equal("steps", 40, 40), "yes"),
        (equal("steps", 39, 40), "NO"),
    ],
)
def test_figure_passes_within_what_is_allowed(row: Row, passed: str) -> None:
    """A stage may be off by 3 %, or by what the gaps around its kernels take."""
    assert row["passed"] == passed


def test_one_failed_check_fails_the_run() -> None:
    """The exit code is 0 only when there were checks and all of them passed."""
    good, bad = told("good", passed=True), told("bad", passed=False)

    assert exit_code([good, good]) == 0
    assert exit_code([good, bad, good]) == 1
    assert exit_code([]) == 1


@pytest.mark.parametrize(
    ("fault", "late", "reason", "passed"),
    [
        ("forward", [{"rank": 2, "stage": "forward"}], None, "yes"),
        ("forward", [{"rank": 2, "stage": "backward"}], None, "NO"),
        ("forward", [], None, "NO"),
        (None, [], None, "yes"),
        (None, [], "join_incomplete", "NO"),
    ],
)
def test_job_that_was_not_judged_has_not_passed(
    fault: str | None, late: list[dict[str, Any]], reason: str | None, passed: str
) -> None:
    """Nobody is named in a healthy job: because it was judged."""
    job = {"verdict": {"late": late, "reason": reason, "sentence": "..."}}
    scrape = 'rankskew_rank_info{clock="device"} 1.0'

    assert ranks.row(ranks.Case("ddp-nccl", fault), 20.0, job, scrape)["passed"] == passed


def a_range(stage: str, ts: float, dur: float, cat: str = "user_annotation") -> dict[str, Any]:
    return {"cat": cat, "name": f"stage:{stage}", "ts": ts, "dur": dur}


def a_kernel(correlation: int, launched: float, ts: float, dur: float, stream: int) -> list[Any]:
    """Return the launch on the host and the kernel on the device, all in µs."""
    return [
        {
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "ts": launched,
            "dur": 1,
            "args": {"correlation": correlation},
        },
        {
            "cat": "kernel",
            "name": "gemm",
            "ts": ts,
            "dur": dur,
            "args": {"correlation": correlation, "stream": stream},
        },
    ]


def test_kernel_belongs_to_the_range_that_launched_it() -> None:
    """Stages are found by the launch, however late the device gets there, gaps included."""
    trace = {
        "traceEvents": [
            {"ph": "M", "name": "process_name"},
            a_range("forward", 0, 10),
            a_range("backward", 20, 10),
            a_range("forward", 40, 10),
            a_range("optimizer", 80, 10),
            a_range("forward", 900, 500, cat="gpu_user_annotation"),
            *a_kernel(1, 1, ts=1_000, dur=2_000, stream=7),
            *a_kernel(2, 2, ts=3_500, dur=500, stream=7),
            *a_kernel(3, 21, ts=4_000, dur=6_000, stream=7),
            *a_kernel(4, 29, ts=10_000, dur=40_000, stream=20),  # the exchange
            *a_kernel(5, 41, ts=60_000, dur=1_000, stream=7),
            *a_kernel(6, 70, ts=61_000, dur=1_000, stream=7),  # in no stage
            *a_kernel(7, 81, ts=62_000, dur=2_000, stream=7),
        ]
    }

    assert profiled_ms(trace) == {
        "forward": 4.0,
        "backward": 6.0,
        "sync": 40.0,
        "optimizer": 2.0,
    }


class HostEvent:
    """An event of a device that does everything at once, so its time is the host's."""

    def __init__(self, *, enable_timing: bool) -> None:
        self._at = 0.0

    def record(self, _stream: object = None) -> None:
        self._at = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Nothing is ever behind."""

    def elapsed_time(self, end_event: "HostEvent") -> float:
        return (end_event._at - self._at) * 1e3


class HostStream:
    """A stream of such a device."""

    def wait_stream(self, _other: "HostStream") -> None:
        """Nothing is ever behind."""


@pytest.fixture
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device that is really the CPU, and a peer that does not exist."""
    for name, replacement in {
        "Event": HostEvent,
        "Stream": HostStream,
        "current_stream": lambda _device=None: HostStream(),
        "stream": lambda _stream: contextlib.nullcontext(),
        "current_device": lambda: 0,
        "synchronize": lambda: None,
        "is_current_stream_capturing": lambda: False,
        "_sleep": lambda cycles: time.sleep(cycles / 1e9),
    }.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    for name in ("_CudaEventBase", "_cuda_isCurrentStreamCapturing"):
        monkeypatch.setattr(torch._C, name, None, raising=False)  # not in a torch without CUDA
    monkeypatch.setattr(looping, "DEVICE", "cpu")
    monkeypatch.setattr(looping, "devices", list)
    monkeypatch.setattr(looping, "cycles_per_ms", lambda: 1e6)
    small = functools.partial(Training, width=32, layers=2)
    monkeypatch.setattr(gpu_check, "Training", lambda faults, **_: small(faults))
    monkeypatch.setattr(gpu_check, "STEPS", 6)
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    distributed.destroy_process_group()


def figures(rows: Iterator[Row]) -> dict[str, float]:
    return {row["check"].partition(": ")[2]: row["found"] for row in rows}


@pytest.mark.usefixtures("on_the_host")
@pytest.mark.parametrize(
    ("faults", "stage"),
    [
        # Here the exchange sleeps on the host, inside backward; `sync` takes a device.
        (Faults(late_peer_ms=50), "backward"),
        (Faults(slow_backward_ms=50), "backward"),
        (Faults(late_loader_ms=50, item=True), "data, against the host's"),
    ],
)
def test_planted_fault_is_found_in_its_stage(faults: Faults, stage: str) -> None:
    """With a device that is really the host each fault shows in its stage, and nothing fails."""
    found = figures(gpu_check.stages("some", faults))

    # That it shows in no other one is not asked for: this host may be busy with something else.
    assert found[stage] >= 45
    assert found["steps dropped"] == found["failures of the probe"] == 0


SAMPLE = GpuSample(0, up=True, memory_total_bytes=80 << 30, power_milliwatts=650_500)


@pytest.mark.parametrize(
    ("sample", "agree"),
    [
        (SAMPLE, True),
        (replace(SAMPLE, power_milliwatts=720_000), False),
        (replace(SAMPLE, memory_total_bytes=None), False),
    ],
)
def test_disagreement_with_nvidia_smi_is_seen(sample: GpuSample, agree: bool) -> None:
    """A reading that nvidia-smi has and we have not, or another one, does not agree."""
    told = {"memory.total": "81920", "power.draw": "655.10"}
    rows = list(compared(sample, [told.get(name, "[N/A]") for name, _, _ in SAME]))

    assert [row["reading"] for row in rows if row["ours"] is not None or row["nvidia-smi"]] == [
        "memory.total",
        "power.draw",
    ]
    assert all(row["agree"] for row in rows) is agree
