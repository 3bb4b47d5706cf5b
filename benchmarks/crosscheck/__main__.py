"""The rules on a real Prometheus, compared with the reference accounting of the same steps.

python -m benchmarks.crosscheck

Simulated jobs of 2 to 64 ranks, with the judge's verdict (join) or with only blocks of steps, which
each node judges, are scraped while they run: from the exporter of each node, at its own moment.
For four minutes, Prometheus is asked several times who is late, in which stage and at what cost;
rankskew/accounting/run.py has the right answers.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from benchmarks.crosscheck.compare import (
    ASKED_SECONDS,
    INTERVAL_SECONDS,
    Case,
    cases,
    compare,
)
from benchmarks.crosscheck.one_port import OnePortPrometheus
from benchmarks.report import write
from devstack.process import free_port
from tests.alerts.job_series import Node, starts_of
from tests.alerts.jobs import Step, simulate

ASK: Final = {
    "named": 'ALERTS{alertname="RankskewStraggler",alertstate="firing"}',
    "all": 'label_replace(job:rankskew_gpus_lost:sum, "kind", "all", "", "")',
    "kinds": "job_kind:rankskew_gpus_lost:sum",
    "judge": "rankskew_job_judge_info",
}


def nodes(case: Case, steps: list[Step]) -> dict[str, Node]:
    """Return the nodes of a job by name, JOB.NUMBER."""
    starts = starts_of(case.job, steps)
    return {
        f"{case.name}.{number}": Node(case.job, case.name, starts, ranks)
        for number, ranks in enumerate(case.job.nodes)
    }


def page(node: Node, now: float) -> str:
    """Return the page of *node* at *now*, in seconds since its job's start."""
    lines = []
    for (name, labels), value in node.page(now).items():
        text = ",".join(f'{label}="{of}"' for label, of in labels)
        lines.append(f"{name}{{{text}}} {value!r}\n")
    return "".join(lines)


@contextmanager
def served(fleet: Mapping[str, Node], now: Callable[[], float]) -> Iterator[int]:
    """Serve the pages as /node/NAME on a loopback port, which is given."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = page(fleet[self.path.rpartition("/")[2]], now())
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    port = free_port()
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield port
        server.shutdown()


def main() -> int:
    """Simulate, scrape, query, compare; return 1 if anything is wrong."""
    asked = list(cases())
    steps = {case.name: simulate(case.job) for case in asked}
    fleet = {name: node for case in asked for name, node in nodes(case, steps[case.name]).items()}
    said: dict[float, Any] = {}
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as name,
        served(fleet, lambda: time.monotonic() - began) as port,
        OnePortPrometheus(
            Path(name), port, list(fleet), interval_seconds=INTERVAL_SECONDS
        ) as server,
    ):
        for seconds in ASKED_SECONDS:
            time.sleep(max(began + seconds - time.monotonic(), 0))
            said[seconds] = {what: server.query(query) for what, query in ASK.items()}
    rows = [compare(case, steps[case.name], said) for case in asked]
    write("crosscheck", rows)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
