"""What `rankskew diagnose` says of each job of `rankskew simulate`, on a real Prometheus."""

import contextlib
import io
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.diagnose.plan import CANNOT_TELL, TOUR, Expected
from benchmarks.diagnose.score import Row, is_right, score
from benchmarks.report import RESULTS
from devstack.parts import RULES, PrometheusProcess, SimulationProcess
from exporter.errors import UsageError
from rankskew.commands import diagnose

PATIENCE_SECONDS: Final = 480.0
POLL_SECONDS: Final = 10.0
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
        "no Prometheus there": ("--prometheus", NOBODY),
        "no exporter there": ("--exporter", NOBODY),
    }
    return [
        score("simulate", name, Expected(CANNOT_TELL), ask(*arguments))
        for name, arguments in cases.items()
    ]
