"""Does a late rank name its slow line? Real gloo ranks under the probe, and a real exporter.

For each place a job in which one line of one rank of four sleeps 30 ms more in each step of 60 ms.
The first line that the exporter shows for that rank is compared with the planted one, when it is
first shown and at the end. In a healthy job nothing may be sampled. Exits 1 if a line is wrong.

    python -m benchmarks.late_lines [--steps 400] [--only PLACE]
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.late_lines import late_lines_job
from benchmarks.late_lines.late_lines_job import LATE_RANK, PLACES
from benchmarks.report import show, write
from devstack.parts import ExporterProcess, TrainingProcess
from devstack.process import StackError

JOB: Final = Path(late_lines_job.__file__)
HEALTHY: Final = "none"
LOOK_SECONDS: Final = 0.25
# Where each line makes its rank late, once enough is known of it.
STAGE_OF: Final = {
    "dataset": "data",
    "collate": "data",
    "iterator": "data",
    "loss": "forward",
    "logging": "other",
}


def planted(place: str) -> str:
    """Return where the slow line of *place* is, as file and number."""
    lines = JOB.read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if line.endswith(f"# planted: {place}"))
    return f"{JOB.name}:{number}"


def watch(place: str, steps: int, exporter: ExporterProcess, folder: Path) -> list[dict[str, Any]]:
    """Train with the slow line of *place*; return what the page showed of late ranks, as it came.

    Each with the seconds since the job's first step. Raises StackError if the job fails.
    """
    training = TrainingProcess(
        folder,
        [place, str(folder), f"--steps={steps}"],
        exporter=exporter.target,
        job_id=place,
        script=("-m", "rank_probe", str(JOB)),
    )
    shown: list[dict[str, Any]] = []
    began: float | None = None
    with training:
        while training.exit_code is None:
            exporter.check_alive()
            job = exporter.live_job(place)
            if job is not None and job["steps"]:
                began = began or time.monotonic()
                shown += [{"at": time.monotonic() - began, **late} for late in _late(job)]
            time.sleep(LOOK_SECONDS)
        if training.exit_code:
            raise training.failure("did not end well")
    return shown


def _late(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the late ranks on the page of a running *job*, each with its lines."""
    lines = {rank["rank"]: rank["late_lines"] for rank in job["ranks"] if not rank["finished"]}
    for late in job["verdict"]["late"]:
        if late["rank"] in lines and late["kind"] == "persistent":
            yield {"rank": late["rank"], "stage": late["stage"], "lines": lines[late["rank"]]}


def row(place: str, shown: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Return the result for *place* from what was *shown* and what the ranks wrote to *folder*."""
    told = {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}
    with_line = [late for late in shown if late["lines"]]
    first = with_line[0] if with_line else None
    last = with_line[-1] if with_line else None
    stage = last["stage"] if last else None
    return {
        "slow line": place,
        "planted at": None if place == HEALTHY else planted(place),
        "named rank": shown[-1]["rank"] if shown else None,
        "stage": stage,
        "first line": last["lines"][0]["place"] if last else None,
        "share": last["lines"][0]["share"] if last else None,
        "rank named after, s": shown[0]["at"] if shown else None,
        "line shown after, s": first["at"] if first else None,
        "samples on it": told[LATE_RANK]["samples"],
        "on the others": sum(each["samples"] for rank, each in told.items() if rank != LATE_RANK),
        "fetching, share": told[LATE_RANK]["fetching"].get(stage),
        "right": _is_right(place, with_line, told),
    }


def _is_right(place: str, with_line: list[dict[str, Any]], told: dict[int, Any]) -> bool:
    """Say whether only the planted line was ever named first, in its stage at last.

    Healthy ranks must be left alone.
    """
    sampled = {rank for rank, each in told.items() if each["samples"]}
    if place == HEALTHY:
        return not sampled and not with_line
    where = re.escape(planted(place))
    named = [late["lines"][0]["place"] for late in with_line]
    is_named = bool(named) and all(re.search(rf"\({where}\)$", each) for each in named)
    return is_named and sampled == {LATE_RANK} and with_line[-1]["stage"] == STAGE_OF[place]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Does a late rank name its slow line?")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--only", choices=(*PLACES, HEALTHY))
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name, ExporterProcess(Path(name)) as exporter:
        for place in (*PLACES, HEALTHY) if options.only is None else (options.only,):
            folder = Path(name) / place
            try:
                shown = watch(place, options.steps, exporter, folder)
            except StackError as error:
                print(error, file=sys.stderr)
                return 1
            rows.append(row(place, shown, folder))
            show(rows[-1:])
    if options.only is None:
        write("late_lines", rows, ("torch",))
    return int(not all(row["right"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
