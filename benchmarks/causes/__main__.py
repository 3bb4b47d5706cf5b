"""Checks the cause that a late rank's exporter reports: real ranks, causes and Prometheus.

In each run one of four gloo ranks becomes late: a process takes its CPU, its cgroup has a quota,
its disk is throttled, its link is slow, its batches are uneven, ... What counts is the first cause
in the exporter's series and in the label of the alert. With --busy, one more process keeps each CPU
busy: then the cause may be unknown, but not wrong. Ranks other than the planted one may then be
late for lack of a CPU; the ranks' own records show whether they are.

    python -m benchmarks.causes [--runs 3] [--only CAUSE ...] [--busy]
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from benchmarks.causes import causes_job, faults
from benchmarks.causes.causes_job import CAUSES, DELAY, LATE_FILE
from benchmarks.causes.score import Heard, add_new, row, said_by, said_in, table_of, true_of_others
from benchmarks.report import merged, show, write
from devstack.parts import ExporterProcess, PrometheusProcess, TrainingProcess
from devstack.process import get, wait_for

JOB: Final = Path(causes_job.__file__)
INTERVAL_SECONDS: Final = 5.0
# The judge needs a quarter of this time, an alert as much again.
LATE_SECONDS: Final = 90.0
# Listen for a scrape or two after the first alert: a wrong report may be about another rank.
LONGER_SECONDS: Final = 10.0
START_SECONDS: Final = 180.0
# As often as an open live page asks, so that no first report is missed.
LISTEN_SECONDS: Final = 0.5
STEPS: Final = 3000


@contextmanager
def job(cause: str, folder: Path, name: str, exporter: ExporterProcess) -> Iterator[None]:
    """Run a training in which *cause* has just been planted."""
    with ExitStack() as stack:
        device = stack.enter_context(faults.disk(folder)) if cause == "disk" else ""
        url = stack.enter_context(faults.slow_server()) if cause == "network" else ""
        if cause == "slow_mount":
            stack.enter_context(faults.slow_mount(folder, DELAY))
        training = TrainingProcess(
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
        yield
        if training.exit_code is not None:
            raise training.failure("ended too early")


def planted(cause: str, pid: int, device: str) -> AbstractContextManager[None]:
    """Plant *cause* on the process *pid*, if it comes from outside."""
    match cause:
        case "hog":
            return faults.beside(pid)
        case "quota":
            return faults.quota(pid)
        case "disk":
            return faults.slow_disk(pid, device)
        case _:
            return nullcontext()


def listen(
    exporter: ExporterProcess,
    prometheus: PrometheusProcess,
    name: str,
    folder: Path,
    *,
    busy: bool,
) -> Heard:
    """Return the reports on the job *name* in LATE_SECONDS, or until shortly after an alert."""
    heard, began = Heard(), time.monotonic()
    until = LATE_SECONDS
    while (seconds := time.monotonic() - began) < until:
        add_new(heard.first, said_in(get(f"{exporter.url}/metrics"), name, seconds))
        add_new(heard.alerts, said_by(prometheus.active_alerts(), name, seconds))
        if heard.alerts:
            until = min(until, heard.alerts[0].seconds + LONGER_SECONDS)
        time.sleep(LISTEN_SECONDS)
    if busy:
        told = [*heard.first, *heard.alerts]
        heard.true_of_others = true_of_others(told, folder, began)
    return heard


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each cause that can be planted here, in each run."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        exporter = stack.enter_context(ExporterProcess(place))
        server = PrometheusProcess(
            place / "prometheus", [exporter.address], interval_seconds=INTERVAL_SECONDS
        )
        prometheus = stack.enter_context(server)
        for run in range(1, options.runs + 1):
            for cause in options.only:
                if why := faults.missing(cause):
                    print(f"{cause} is not planted: {why}", file=sys.stderr)
                    continue
                name = f"{cause}-{run}"
                folder = place / name
                folder.mkdir()
                hogs = faults.busy_cpus() if options.busy else nullcontext()
                with hogs, job(cause, folder, name, exporter):
                    heard = listen(exporter, prometheus, name, folder, busy=options.busy)
                told = row(cause, run, heard, busy=options.busy)
                # The temporary path of a mount does not matter.
                yield told | {"sentence": told["sentence"].replace(f"{place}/", "")}


def main() -> int:
    """Measure and print; return 1 if a cause is wrong or, without --busy, not right."""
    parser = argparse.ArgumentParser(description="Is the cause right?")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=CAUSES, nargs="+", default=CAUSES)
    parser.add_argument("--busy", action="store_true", help="keep all CPUs busy beside the job")
    options = parser.parse_args()
    rows = []
    for each in measured(options):
        rows.append(each)
        show([each])
    kept = merged("causes", rows, ("busy", "run", "planted"))
    kept.sort(key=lambda each: (each["busy"], each["run"], CAUSES.index(each["planted"])))
    write("causes", kept, ("torch",), tables={"causes": table_of})
    outcomes = Counter(each["outcome"] for each in rows)
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
    accepted = ("right", "unknown", "silent") if options.busy else ("right",)
    return int(any(each["outcome"] not in accepted for each in rows))


if __name__ == "__main__":
    sys.exit(main())
