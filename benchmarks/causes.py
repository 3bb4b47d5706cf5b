"""Does `rankskew diagnose` tell the cause of a late rank? Real ranks, real causes, real Prometheus.

In each run one of four gloo ranks becomes late: a process takes its CPU, its cgroup has a quota,
its disk is throttled, its link is slow, its batches are uneven, ... After a minute and a half the
report is compared with what was planted.

    python -m benchmarks.causes [--runs 3] [--only CAUSE ...]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import causes_faults, causes_job
from benchmarks.causes_job import CAUSES, LATE_FILE, LATE_RANK
from benchmarks.report import RESULTS, show, write
from demo.process import StackError, wait_for
from demo.stack import Exporter, Prometheus, Training

JOB: Final = Path(causes_job.__file__)
HEALTHY: Final = "none"
INTERVAL_SECONDS: Final = 5.0
# The judge needs a quarter of it, and the evidence a minute.
LATE_SECONDS: Final = 90.0
START_SECONDS: Final = 90.0
STEPS: Final = 3000
# The cause that the report should name, and the stages in which the rank may be late.
RIGHT: Final = {
    "hog": ("cpu", ("forward", "backward")),
    "quota": ("cpu", ("forward", "backward")),
    "disk": ("input", ("data",)),
    "network": ("input", ("data",)),
    "workers": ("input", ("data",)),
    "tokens": ("uneven_batches", ("forward", "backward")),
    "gc": ("gc", ("other", "optimizer", "forward", "backward", "data")),
    "checkpoint": ("extra_duties", ("checkpoint",)),
    "line": ("extra_duties", ("other",)),
}


@contextmanager
def job(cause: str, folder: Path, name: str, exporter: Exporter) -> Iterator[None]:
    """Run the training until *cause* has lasted for LATE_SECONDS; it goes on meanwhile."""
    with ExitStack() as stack:
        device = stack.enter_context(causes_faults.disk(folder)) if cause == "disk" else ""
        url = stack.enter_context(causes_faults.slow_server()) if cause == "network" else ""
        training = Training(
            folder,
            [cause, str(folder), f"--steps={STEPS}", f"--url={url}"],
            exporter=exporter.target,
            job_id=name,
            script=("-m", "rank_probe", str(JOB)),
        )
        stack.enter_context(training)
        late = folder / LATE_FILE
        if wait_for(lambda: late.exists() or None, START_SECONDS) is None:
            raise training.failure("did not become late")
        stack.enter_context(planted(cause, int(late.read_text()), device))
        time.sleep(LATE_SECONDS)
        if training.exit_code is not None:
            raise training.failure("ended too early")
        yield


def planted(cause: str, pid: int, device: str) -> AbstractContextManager[None]:
    """Plant what comes from outside on the process *pid*."""
    match cause:
        case "hog":
            return causes_faults.beside(pid)
        case "quota":
            return causes_faults.quota(pid)
        case "disk":
            return causes_faults.slow_disk(pid, device)
        case _:
            return nullcontext()


@dataclass(frozen=True)
class Said:
    """What the command printed and returned."""

    status: int
    report: dict[str, Any]

    @property
    def late(self) -> dict[str, Any]:
        """Return the first finding about a rank; an empty one if there is none."""
        named = (each for each in self.report.get("findings", []) if each.get("rank") is not None)
        return next(named, {})


def diagnosed(prometheus: Prometheus, name: str) -> Said:
    """Return what `rankskew diagnose` says of the job *name*."""
    command = [sys.executable, "-m", "exporter", "diagnose", "--json"]
    command += ["--prometheus", prometheus.url, "--job", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise StackError(done.stderr.strip())
    return Said(done.returncode, json.loads(done.stdout))


def row(cause: str, run: int, said: Said) -> dict[str, Any]:
    """Return a row of the result; *wrong and sure* is what must never be."""
    late = said.late
    right_cause, stages = RIGHT.get(cause, (None, ()))
    if cause == HEALTHY:
        right = said.status == 0 and not late
    else:
        right = late.get("rank") == LATE_RANK and late.get("cause") == right_cause
    return {
        "planted": cause,
        "run": run,
        "status": said.status,
        "rank": late.get("rank"),
        "stage": late.get("stage"),
        "cause": late.get("cause"),
        "detail": late.get("detail"),
        "confidence": late.get("confidence"),
        "line": next((line.get("place") for line in late.get("lines") or []), None),
        "first action": (late.get("first") or "")[:60],
        "stage right": cause == HEALTHY or late.get("stage") in stages,
        "right": right,
        "wrong and sure": not right and late.get("confidence") == "high",
    }


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return *rows*, and those of the last result for other causes or runs."""
    path = RESULTS / "causes.json"
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    measured = {(each["planted"], each["run"]) for each in rows}
    kept = [each for each in before if (each["planted"], each["run"]) not in measured]
    return sorted([*kept, *rows], key=lambda each: (each["run"], CAUSES.index(each["planted"])))


def main() -> int:
    """Measure and print; return 1 if fewer than nine in ten are right, or one is wrong and sure."""
    parser = argparse.ArgumentParser(description="Is the cause right?")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=CAUSES, nargs="+", default=CAUSES)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place, Exporter(Path(place)) as exporter:
        server = Prometheus(
            Path(place) / "prometheus", [exporter.address], interval_seconds=INTERVAL_SECONDS
        )
        with server as prometheus:
            for run in range(1, options.runs + 1):
                for cause in options.only:
                    if why := causes_faults.missing(cause):
                        print(f"{cause} is not planted: {why}", file=sys.stderr)
                        continue
                    name = f"{cause}-{run}"
                    folder = Path(place) / name
                    folder.mkdir()
                    with job(cause, folder, name, exporter):
                        rows.append(row(cause, run, diagnosed(prometheus, name)))
                    show(rows[-1:])
    write("causes", merged(rows), ("torch",))
    right = sum(each["right"] for each in rows)
    sure = sum(each["wrong and sure"] for each in rows)
    print(f"{right} of {len(rows)} right, {sure} wrong and sure")
    return int(right < 0.9 * len(rows) or sure > 0)


if __name__ == "__main__":
    sys.exit(main())
