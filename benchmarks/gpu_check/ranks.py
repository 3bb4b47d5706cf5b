"""What the page says of four ranks that share one GPU, and what the exporter exposes of it.

    python -m benchmarks.gpu_check.ranks

A healthy job and one for each place of a delay under DDP, and late ones under torch.compile and
FSDP2, over gloo and over NCCL. Each ends as soon as it was told, or after a while. `--wrap` runs the jobs of some ways to
wrap the model, and keeps the rows of the others. Writes results/gpu_ranks.json, and
results/gpu_exposition.txt, a whole scrape while the ranks of the first late job train. Exits 1 if a
verdict is wrong, 2 without a CUDA device.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.gpu_check.rank_job import HEALTHY
from benchmarks.report import RESULTS, write
from fleet_simulator.stack.parts import ExporterProcess, TrainingProcess
from fleet_simulator.stack.process import get

LATE_RANK: Final = 2
RANKS: Final = 4
DELAY_MS: Final = 15.0
# A late rank is named after 22 s of a job's life; this leaves twice that.
PATIENCE_SECONDS: Final = 45.0
# A verdict counts if it lasts.
LASTS_SECONDS: Final = 4.0


def named(job: dict[str, Any] | None) -> list[tuple[int, str]]:
    """Return the late ranks of a page's *job*, each with its stage."""
    return [] if job is None else [(int(late["rank"]), late["stage"]) for late in late_of(job)]


def late_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the page's late ranks of *job*."""
    late: list[dict[str, Any]] = job["verdict"]["late"]
    return late


def watch(exporter: ExporterProcess, training: TrainingProcess) -> tuple[float, dict[str, Any]]:
    """Return after how many seconds the page named ranks to stay, inf for never, and its job."""
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


def row(
    wrap: str, fault: str | None, after: float, job: dict[str, Any], scrape: str
) -> dict[str, Any]:
    """Return what was planted, and what the page and a *scrape* made of it."""
    planted = [] if fault is None else [(LATE_RANK, fault)]
    return {
        "model": wrap,
        "planted": "nothing" if fault is None else f"rank {LATE_RANK}, {fault}, {DELAY_MS:g} ms",
        "clocks": sorted(set(re.findall(r'rankskew_rank_info{.*clock="(\w+)"', scrape))),
        "named": ", ".join(f"rank {rank}, {stage}" for rank, stage in named(job)) or "nobody",
        "after s": round(after, 1) if after < float("inf") else None,
        "page": job["verdict"]["sentence"],
        "passed": "yes" if named(job) == planted else "NO",
    }


CASES: Final = (
    *(("ddp", fault) for fault in (None, *HEALTHY)),
    ("compiled", "forward"),
    ("fsdp2", "data"),
    ("fsdp2", "forward"),
    *(("ddp-nccl", fault) for fault in (None, *HEALTHY)),
    ("fsdp2-nccl", "data"),
    ("fsdp2-nccl", "forward"),
)


def measured(directory: Path, wraps: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each case of *wraps*, and keep a scrape of the first late job under DDP."""
    rows = []
    exposition = ""
    with ExporterProcess(directory / "exporter", flags=["--series.detail=all"]) as exporter:
        for wrap, fault in (case for case in CASES if case[0] in wraps):
            arguments = [] if fault is None else [f"--fault={fault}", f"--delay-ms={DELAY_MS}"]
            script = ["-m", "rank_probe", "-m", "benchmarks.gpu_check.rank_job"]
            job_id = f"{wrap}-{fault or 'healthy'}"
            with TrainingProcess(
                directory / job_id,
                [*arguments, f"--wrap={wrap}", f"--fault-rank={LATE_RANK}"],
                exporter=exporter.target,
                job_id=job_id,
                ranks=RANKS,
                script=script,
            ) as training:
                after, job = watch(exporter, training)
                scrape = get(f"{exporter.url}/metrics").decode()
            rows.append(row(wrap, fault, after, job, scrape))
            print(rows[-1], flush=True)
            if wrap.startswith("ddp") and fault and not exposition:
                exposition = scrape
                (RESULTS / "gpu_exposition.txt").write_text(exposition)
    return rows


def kept(wraps: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of the last run that are of no model in *wraps*."""
    path = RESULTS / "gpu_ranks.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    return [each for each in rows if each["model"] not in wraps]


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description="Four ranks on one GPU, and what the page says.")
    ways = list(dict.fromkeys(wrap for wrap, _ in CASES))
    parser.add_argument("--wrap", nargs="+", choices=ways, default=ways)
    wraps = parser.parse_args().wrap
    if not torch.cuda.is_available():
        print("gpu_check.ranks needs a CUDA device, and torch sees none here.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        rows = measured(Path(directory), wraps)
    write("gpu_ranks", [*kept(wraps), *rows], packages=("torch", "nvidia-ml-py"))
    return 0 if all(each["passed"] == "yes" for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
