"""What the rules say on a real Prometheus, beside the reference accounting of the same steps.

python -m benchmarks.crosscheck

Simulated jobs of 2 to 64 ranks, with the per-step join and without, are scraped as they go on: by
their node, each at a moment of its own. After three minutes each job has been asked several times
who is late, in which stage and what it costs; exporter/accounting.py says what is right.
"""

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from benchmarks.one_port import OnePortPrometheus
from benchmarks.report import write
from demo.process import free_port
from demo.stack import Prometheus, Series
from exporter.accounting import Account, account, kinds
from tests.alerts.jobs import Fault, Job, State, Step, simulate, states

RANKS: Final = (2, 4, 8, 16, 32, 64)
INTERVAL_SECONDS: Final = 15.0
ASKED_SECONDS: Final = (165.0, 180.0, 195.0)
# What a rule has seen when it is asked: a minute that ended some scrapes ago.
WINDOW_SECONDS: Final = (90.0, 15.0)
# Of the GPUs that are lost, or a hundredth of the job's, whichever is more. Means cannot tell what
# the late rank costs from what the noise of all costs beside it.
TOLERANCE: Final = {"join": 0.1, "window": 0.15}
SMALL: Final = 0.01
KINDS: Final = ("all", "persistent", "rotating", "group", "common")


@dataclass(frozen=True)
class Case:
    """A job, and the rank and stage that are to be named in it, if any."""

    fault: str
    job: Job
    late: tuple[int, str] | None = None

    @property
    def name(self) -> str:
        """Its job_id."""
        return f"{self.fault}-{self.job.ranks}-{'join' if self.job.join else 'window'}"


def cases() -> Iterator[Case]:
    """Yield what is simulated."""
    seconds = ASKED_SECONDS[-1] + INTERVAL_SECONDS
    for ranks in RANKS:
        for join in (True, False):
            late = (ranks // 3, "forward")
            healthy = Job(ranks=ranks, seed=ranks, seconds=seconds, join=join)
            yield Case("straggler", replace(healthy, faults=(Fault(*late, 0.25),)), late)
            yield Case("rotating", replace(healthy, faults=(Fault(None, "data", 0.5),)))
            yield Case("none", healthy)
            if ranks > 2:
                yield Case("groups", replace(healthy, group_work=(1.0, 1.3)))


class Nodes:
    """The pages of all nodes of all jobs, as of now."""

    def __init__(self, jobs: Mapping[str, tuple[Job, Sequence[State]]]) -> None:
        self._jobs = jobs
        self.began = time.time()

    @property
    def names(self) -> list[str]:
        """Every node, as JOB.NUMBER."""
        return [
            f"{name}.{node}"
            for name, (job, _) in self._jobs.items()
            for node in range(-(-job.ranks // job.ranks_per_node))
        ]

    def page(self, name: str) -> str:
        """Return what the exporter of node *name* says."""
        job_id, _, node = name.rpartition(".")
        job, of_ranks = self._jobs[job_id]
        first = int(node) * job.ranks_per_node
        lines = []
        for rank in range(first, min(first + job.ranks_per_node, job.ranks)):
            who = f'job_id="{job_id}",peer_group="g{job.group(rank)}",rank="{rank}"'
            for metric, value in of_ranks[rank].pushed_at(time.time() - self.began):
                series, _, labels = metric.rstrip("}").partition("{")
                absolute = value + self.began * series.endswith("_timestamp_seconds")
                lines.append(f"{series}{{{','.join(filter(None, (who, labels)))}}} {absolute!r}\n")
        return "".join(lines)


@contextmanager
def served(nodes: Nodes) -> Iterator[int]:
    """Serve the pages as /node/NAME on a loopback port, which is given."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = nodes.page(self.path.rpartition("/")[2]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            pass

    port = free_port()
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield port
        server.shutdown()


def reference(case: Case, steps: Sequence[Step], asked_seconds: float) -> Account:
    """Return the account of what the rules can have seen when asked."""
    first, last = (asked_seconds - ago for ago in WINDOW_SECONDS)
    groups = {rank: str(case.job.group(rank)) for rank in range(case.job.ranks)}
    return account(
        (
            {rank: {**own, "sync": step.sync[rank]} for rank, own in enumerate(step.stages)}
            for step in steps
            if first < step.end_seconds <= last
        ),
        groups,
    )


def ask(prometheus: Prometheus) -> dict[str, list[Series]]:
    """Return what the rules say of all jobs now."""
    return {
        what: prometheus.query(expression)
        for what, expression in {
            "named": "topk by (job_id, rank) (1, rank_stage:rankskew_gpus_lost:mean1m)"
            ' and on (job_id, rank) ALERTS{alertname="RankskewStraggler",alertstate="firing"}',
            "kinds": "job_kind:rankskew_gpus_lost:mean1m",
            "source": "job_source:rankskew_gpus_lost:info",
        }.items()
    }


def compare(case: Case, steps: Sequence[Step], said: dict[float, Any]) -> dict[str, Any]:
    """Return a row: what was named, and by how much each kind of loss differs, at most.

    The difference is in parts of what is lost; it is the median of the times that were asked.
    """
    named: set[tuple[int, str]] = set()
    sources: set[str] = set()
    differ: dict[str, list[float]] = {}
    for asked, answer in said.items():
        of_job = {
            what: [one for one in found if one.labels["job_id"] == case.name]
            for what, found in answer.items()
        }
        named |= {(int(one.labels["rank"]), one.labels["stage"]) for one in of_job["named"]}
        sources |= {one.labels["source"] for one in of_job["source"]}
        true = reference(case, steps, asked)
        right = kinds(true, {case.late[0]} if case.late else ())
        by_kind = {one.labels["kind"]: one.value for one in of_job["kinds"]}
        small = SMALL * case.job.ranks
        expected = {kind: getattr(right, kind) / true.seconds for kind in by_kind}
        expected["all"], by_kind["all"] = right.lost / true.seconds, sum(by_kind.values())
        for kind, value in by_kind.items():
            error = abs(value - expected[kind]) / max(expected["all"], small)
            differ.setdefault(kind, []).append(error)
    return {
        "fault": case.fault,
        "ranks": case.job.ranks,
        "source": " ".join(sorted(sources)),
        "right": named == ({case.late} if case.late else set()),
        "named": " ".join(f"{rank}:{stage}" for rank, stage in sorted(named)),
        "GPUs lost": expected["all"],
        **{kind: statistics.median(differ[kind]) if kind in differ else None for kind in KINDS},
    }


def failures(row: dict[str, Any], case: Case) -> list[str]:
    """Return what of *row* is not as it ought to be."""
    found = []
    if not row["right"]:
        found.append(f"{case.name}: named {row['named'] or 'nobody'}")
    source = "join" if case.job.join else "window"
    if row["source"] != source:
        found.append(f"{case.name}: {row['source'] or 'no source'} spoke")
    for kind in KINDS:
        if row[kind] is None or row[kind] > TOLERANCE[source]:
            found.append(f"{case.name}: {kind} differs by {row[kind]}")
    return found


def main() -> int:
    """Simulate, scrape, ask, compare; 1 if anything is wrong."""
    asked = list(cases())
    steps = {case.name: simulate(case.job) for case in asked}
    jobs = {case.name: (case.job, states(case.job, steps[case.name])) for case in asked}
    said: dict[float, Any] = {}
    nodes = Nodes(jobs)
    with (
        tempfile.TemporaryDirectory() as name,
        served(nodes) as port,
        OnePortPrometheus(
            Path(name), port, nodes.names, interval_seconds=INTERVAL_SECONDS
        ) as server,
    ):
        nodes.began = time.time()
        for seconds in ASKED_SECONDS:
            time.sleep(max(nodes.began + seconds - time.time(), 0))
            said[seconds] = ask(server)
    rows = [compare(case, steps[case.name], said) for case in asked]
    write("crosscheck", rows)
    wrong = [text for row, case in zip(rows, asked, strict=True) for text in failures(row, case)]
    print("\n".join(wrong) or "all as the reference says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
