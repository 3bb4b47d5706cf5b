"""Does `rankskew diagnose` name rank, stage, cause and a fitting first action for each fault?

The faults of `rankskew simulate`, on a real Prometheus with the shipped rules, and those of
`make bench-accuracy`, on traces that real gloo ranks have recorded. Each must also end with the
right exit status: 0 for a healthy job, 1 if something is found, 2 if it cannot be told.
Exits 1 if anything is wrong.

    python -m benchmarks.diagnose [--only tour|traces] [--ranks 4] [--sizes 25] [--interval 8]

Traces stay in .accuracy, as those of benchmarks.accuracy do, and are not recorded again.
"""

import argparse
import contextlib
import io
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy import AT_ONCE, REPLAYED_STEP_SECONDS, TRACES, record
from benchmarks.accuracy_plan import Segment, grid
from benchmarks.accuracy_trace import read_rows, truth
from benchmarks.diagnose_plan import CANNOT_TELL, TOUR, Expected, of_segment
from benchmarks.diagnose_score import Row, is_right, score
from benchmarks.report import RESULTS, write
from exporter.errors import UsageError
from fleet_simulator.stack.parts import RULES, PrometheusProcess, SimulationProcess
from rankskew.commands import diagnose

PATIENCE_SECONDS: Final = 480.0
POLL_SECONDS: Final = 10.0
FEW_STEPS: Final = 12
RESULT: Final = RESULTS / "diagnose.json"
SAMPLE: Final = RESULTS / "diagnose_sample.txt"
NOBODY: Final = "http://127.0.0.1:1"


def ask(*arguments: str) -> dict[str, Any]:
    """Return the document that the command prints, with its exit status."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            status = diagnose.run([*arguments, "--json"])
        except UsageError as error:
            return {"trouble": str(error), "exit_status": 2}
    document: dict[str, Any] = json.loads(printed.getvalue())
    return document | {"exit_status": status}


# ---- The tour of `rankskew simulate` -----------------------------------------------------------


def tour(interval_seconds: float) -> list[Row]:
    """Return a row for each job of the tour, and for each thing that cannot be told.

    Writes a whole report as a sample.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        rules = fast_rules(directory / "rules")
        with (
            SimulationProcess(directory / "simulation") as simulation,
            PrometheusProcess(
                directory,
                discovery=simulation.discovery,
                rules=rules,
                interval_seconds=interval_seconds,
            ) as prometheus,
        ):
            rows = [*_settled(prometheus.url), *_untold(prometheus.url)]
            SAMPLE.write_text(sample(prometheus.url))
            return rows


def sample(url: str) -> str:
    """Return the report on one job of the tour, with an address for *url* that can be printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        diagnose.run(["--prometheus", url, "--job", "thermal"])
    return printed.getvalue().replace(url, "http://prometheus:9090")


def fast_rules(directory: Path, rules: Path = RULES) -> Path:
    """Write *rules*, those shipped by default, all evaluated as often as they can be."""
    directory.mkdir()
    for path in rules.glob("*.yaml"):
        text = re.sub(r"^    interval: .*\n", "", path.read_text(), flags=re.MULTILINE)
        (directory / path.name).write_text(text)
    return directory


def _settled(url: str) -> list[Row]:
    """Ask until all answers of one round are right, or patience ends: the rules wait for minutes.

    Between rounds only those that were wrong are asked again. A wrong cause counts whenever it
    was said.
    """
    rows: dict[str, Row] = {}
    ever_wrong: set[str] = set()
    deadline = time.monotonic() + PATIENCE_SECONDS
    asked = set(TOUR)
    while True:
        for job_id in asked:
            document = ask("--prometheus", url, "--job", job_id)
            rows[job_id] = score("simulate", job_id, TOUR[job_id], document)
            if rows[job_id]["wrong cause"]:
                ever_wrong.add(job_id)
        wrong = {job_id for job_id, row in rows.items() if not is_right(row)}
        print(f"not right yet: {', '.join(sorted(wrong)) or 'none'}", flush=True)
        if time.monotonic() > deadline or (not wrong and asked == set(TOUR)):
            break
        asked = wrong or set(TOUR)
        time.sleep(POLL_SECONDS if wrong else 0.0)
    return [rows[job_id] | {"wrong cause": job_id in ever_wrong} for job_id in TOUR]


def _untold(url: str) -> list[Row]:
    """Ask what cannot be told."""
    long_ago = str(time.time() - 86_400)
    cases = {
        "no such job": ("--prometheus", url, "--job", "nobody"),
        "which of many jobs": ("--prometheus", url),
        "a day earlier": ("--prometheus", url, "--job", "loader", "--at", long_ago),
        "no such job in an hour": ("--prometheus", url, "--job", "nobody", "--since", "1h"),
        "no Prometheus there": ("--prometheus", NOBODY),
        "no exporter there": ("--exporter", NOBODY),
    }
    return [
        score("simulate", name, Expected(CANNOT_TELL), ask(*arguments))
        for name, arguments in cases.items()
    ]


# ---- Recorded traces ---------------------------------------------------------------------------


def traces(ranks: Sequence[int], sizes: Sequence[float], folder: Path) -> Iterator[Row]:
    """Yield a row for each fault of the grid, recorded if need be, and for too short a trace."""
    folder.mkdir(parents=True, exist_ok=True)
    for segments in grid(["ddp"], ranks, [1], sizes=sizes):
        new = [one for one in segments if not (folder / f"{one.key}.json").exists()]
        for start in range(0, len(new), AT_ONCE):
            record(new[start : start + AT_ONCE], folder)
        yield from (_of_trace(segment, folder) for segment in segments)
        yield _too_short(segments[0], folder)


def _of_trace(segment: Segment, folder: Path) -> Row:
    scale = _scale(segment, folder)
    document = ask("--trace", f"{folder}/{segment.key}.csv", "--time-scale", f"{scale:.3f}")
    size = f" {segment.size:.0%}" if segment.size else ""
    name = f"{segment.fault}{size}, {segment.ranks} ranks"
    return score("trace", name, of_segment(segment), document)


def _scale(segment: Segment, folder: Path) -> float:
    notes = json.loads((folder / f"{segment.key}.json").read_text())
    delayed = {
        int(rank): {int(step): seconds for step, seconds in steps.items()}
        for rank, steps in notes["delayed"].items()
    }
    true = truth(segment, read_rows(folder / f"{segment.key}.csv"), delayed)
    return REPLAYED_STEP_SECONDS / true.healthy_step_seconds


def _too_short(segment: Segment, folder: Path) -> Row:
    lines = (folder / f"{segment.key}.csv").read_text().splitlines(keepends=True)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "short.csv"
        path.write_text("".join(lines[: 1 + FEW_STEPS * segment.ranks]))
        document = ask("--trace", str(path))
    what = f"only {FEW_STEPS} steps, {segment.ranks} ranks"
    return score("trace", what, Expected(CANNOT_TELL, ("warming_up",)), document)


def _stored(measured: set[str]) -> list[Row]:
    """Return the rows of the last result whose source has not been *measured* again."""
    if not RESULT.exists():
        return []
    found: list[Row] = json.loads(RESULT.read_text())["rows"]
    return [row for row in found if row["source"] not in measured]


def main() -> int:
    """Ask about every fault; exits 1 if an answer is wrong."""
    parser = argparse.ArgumentParser(description="Does diagnose name what was planted?")
    parser.add_argument("--only", choices=("tour", "traces"))
    parser.add_argument("--ranks", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--sizes", type=lambda text: [int(word) / 100 for word in text.split(",")])
    parser.add_argument("--interval", type=float, default=8.0, help="seconds between scrapes")
    parser.add_argument("--traces", type=Path, default=TRACES, help="where the traces are kept")
    options = parser.parse_args()
    rows: list[Row] = []
    if options.only != "traces":
        rows += tour(options.interval)
    if options.only != "tour":
        rows += traces(options.ranks or (4, 2), options.sizes or (0.25,), options.traces)
    write("diagnose", [*_stored({row["source"] for row in rows}), *rows], ["torch"])
    return 0 if all(map(is_right, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
