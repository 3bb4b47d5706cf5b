"""What the page says of four ranks that share one GPU, and what the exporter exposes of it.

    python -m benchmarks.gpu_check.ranks

Under DDP, a healthy job and one for each place of a delay; under torch.compile and FSDP2, jobs with
a late rank; over gloo and over NCCL. A job ends once the page has named a rank, or after a while.
`--wrap` runs only the jobs of these ways to wrap the model, and keeps the rows of the others.
Writes results/gpu_ranks.json, and whole scrapes while a rank is late: results/gpu_exposition.txt,
and over NCCL gpu_exposition_nccl.txt. Exits 1 if a verdict is wrong, 2 without a CUDA device.

The ranks over NCCL share the GPU through NVIDIA's MPS. Without it they take turns, and an
all-reduce of four ranks takes 27 ms.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from benchmarks.gpu_check.figures import ranks_table
from benchmarks.gpu_check.rank_job import WAYS
from benchmarks.report import RESULTS, merged, write
from devstack.parts import ExporterProcess, TrainingProcess
from devstack.process import get

LATE_RANK: Final = 2
RANKS: Final = 4
DELAY_MS: Final = 15.0
# Over NCCL the host does not wait for its peers: a loader that is 15 ms late hides behind the GPU.
NOT_HIDDEN_MS: Final = 40.0
# A late rank is named after 22 s of a job's life; this leaves twice that.
PATIENCE_SECONDS: Final = 45.0
# A verdict counts if it lasts.
LASTS_SECONDS: Final = 4.0


def named(job: dict[str, Any] | None) -> list[tuple[int, str]]:
    """Return the late ranks of a page's *job*, each with its stage."""
    late = [] if job is None else job["verdict"]["late"]
    return [(int(each["rank"]), each["stage"]) for each in late]


def watch(exporter: ExporterProcess, training: TrainingProcess) -> tuple[float, dict[str, Any]]:
    """Return after how many seconds the page named lasting ranks (inf: never), and its job."""
    began = since = time.monotonic()
    said: list[tuple[int, str]] = []
    job: dict[str, Any] = {"verdict": {"late": [], "sentence": "The job is not known yet."}}
    while time.monotonic() < began + PATIENCE_SECONDS:
        training.check_alive()
        job = exporter.live_job(training.job_id) or job
        if (now := named(job)) != said:
            said, since = now, time.monotonic()
        if said and time.monotonic() > since + LASTS_SECONDS:
            return since - began, job
        time.sleep(0.5)
    return float("inf"), job


class Case(NamedTuple):
    """A job: how its model is wrapped, and in which stage rank LATE_RANK is late, if in any.

    *exposition* is the results file that keeps a whole scrape, taken while the job trains.
    """

    way: str
    fault: str | None
    delay_ms: float = DELAY_MS
    exposition: str | None = None


CASES: Final = (
    Case("ddp", None),
    Case("ddp", "data", exposition="gpu_exposition.txt"),
    Case("ddp", "forward"),
    Case("ddp", "backward"),
    Case("compiled", "forward"),
    Case("fsdp2", "data"),
    Case("fsdp2", "forward"),
    Case("ddp-nccl", None),
    Case("ddp-nccl", "forward", exposition="gpu_exposition_nccl.txt"),
    Case("ddp-nccl", "backward"),
    Case("ddp-nccl", "data", NOT_HIDDEN_MS),
    Case("fsdp2-nccl", "data", NOT_HIDDEN_MS),
    Case("fsdp2-nccl", "forward"),
)


def row(case: Case, after: float, job: dict[str, Any], scrape: str) -> dict[str, Any]:
    """Return what was planted, and what the page and a *scrape* made of it."""
    late = named(job)
    verdict = job["verdict"]
    planted = [(LATE_RANK, case.fault)] if case.fault else []
    return {
        "model": case.way,
        "planted": (
            f"rank {LATE_RANK}, {case.fault}, {case.delay_ms:g} ms" if case.fault else "nothing"
        ),
        "clocks": sorted(set(re.findall(r'rankskew_rank_info{.*clock="(\w+)"', scrape))),
        "named": ", ".join(f"rank {rank}, {stage}" for rank, stage in late) or "nobody",
        "after s": round(after, 1) if after < float("inf") else None,
        "page": verdict["sentence"],
        # A job that could not be judged has a reason.
        "passed": "yes" if late == planted and verdict["reason"] is None else "NO",
    }


@contextmanager
def shared_gpu(directory: Path, backend: str) -> Iterator[Mapping[str, str]]:
    """Yield the environment of a job; a job over NCCL gets its own server of NVIDIA's MPS.

    Ending a job in the middle of its kernels also takes down its server.
    """
    if backend != "nccl":
        yield {}
        return
    directory.mkdir(parents=True)
    names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
    environment = dict.fromkeys(names, str(directory))
    control, whole = "nvidia-cuda-mps-control", {**os.environ, **environment}
    subprocess.run([control, "-d"], env=whole, check=True)
    try:
        yield environment
    finally:
        subprocess.run([control], input=b"quit\n", env=whole, check=False, timeout=30)


def watched(case: Case, directory: Path, exporter: ExporterProcess) -> dict[str, Any]:
    """Return the row of *case*, and keep its scrape."""
    job_id = f"{case.way}-{case.fault or 'healthy'}"
    late = [f"--fault={case.fault}", f"--delay-ms={case.delay_ms}"] if case.fault else []
    with (
        shared_gpu(directory / f"mps-{job_id}", WAYS[case.way].backend) as environment,
        TrainingProcess(
            directory / job_id,
            [*late, f"--wrap={case.way}", f"--fault-rank={LATE_RANK}"],
            exporter=exporter.target,
            job_id=job_id,
            ranks=RANKS,
            environment=environment,
            script=["-m", "rank_probe", "-m", "benchmarks.gpu_check.rank_job"],
        ) as training,
    ):
        after, job = watch(exporter, training)
        scrape = get(f"{exporter.url}/metrics").decode()
    if case.exposition is not None:
        (RESULTS / case.exposition).write_text(scrape)
    return {"GPU": torch.cuda.get_device_name(), **row(case, after, job, scrape)}


def measured(directory: Path, ways: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each case of *ways*."""
    rows = []
    with ExporterProcess(directory / "exporter", flags=["--series.detail=all"]) as exporter:
        for case in (each for each in CASES if each.way in ways):
            rows.append(watched(case, directory, exporter))
            print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description="Four ranks on one GPU, and what the page says.")
    parser.add_argument("--wrap", nargs="+", choices=WAYS, default=list(WAYS))
    ways = parser.parse_args().wrap
    if not torch.cuda.is_available():
        print("gpu_check.ranks needs a CUDA device, and torch sees none here.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        rows = measured(Path(directory), ways)
    packages = ("torch", "nvidia-ml-py")
    found = merged("gpu_ranks", rows, ("model",))
    write("gpu_ranks", found, packages, tables={"gpu_ranks": ranks_table})
    return 0 if all(each["passed"] == "yes" for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
