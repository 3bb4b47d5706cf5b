"""Exporters of an older and the newer release, one after the other, under ranks of both."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.faults.ranks.job import RANKS, Job
from benchmarks.report import Row, row
from devstack.parts import ROOT, ExporterProcess
from devstack.process import get, wait_for

COMMITS_AGO: Final = 60
PACKAGES: Final = ("exporter", "rank_probe", "rankskew", "alerts", "dashboards")
NO_HISTORY: Final = f"the clone has less than {COMMITS_AGO} commits: git fetch --unshallow"
OLD_RANKS: Final = (2, 3)
START_SECONDS: Final = 60.0


def has_history() -> bool:
    """Whether this checkout has a commit that old."""
    commit = f"HEAD~{COMMITS_AGO}^{{commit}}"
    return _git("rev-parse", "--verify", "--quiet", commit).returncode == 0


@contextmanager
def old_release(directory: Path) -> Iterator[dict[str, str]]:
    """Yield the environment in which exporter and probe are those of COMMITS_AGO."""
    tree = directory / "old"
    _git("worktree", "add", "--detach", str(tree), f"HEAD~{COMMITS_AGO}").check_returncode()
    packages = directory / "packages"
    packages.mkdir()
    for package in PACKAGES:
        if (tree / package).exists():  # Its exporter/ had the command once: the new one starts it.
            (packages / package).symlink_to(tree / package)
    try:
        # Not from the folder in which it is started, which has the new ones.
        yield {"PYTHONPATH": f"{packages}:{ROOT}", "PYTHONSAFEPATH": "1"}
    finally:
        _git("worktree", "remove", "--force", str(tree)).check_returncode()


def upgraded(directory: Path, seconds: float = 10.0) -> list[Row]:
    """Train with both probes, on the old exporter, the new one and the old one again."""
    with old_release(directory) as old:
        before = ExporterProcess(directory / "exporter", environment=old, flags=["--path.state="])
        after = ExporterProcess(directory / "exporter", flags=["--path.state="])
        after.ready_url = before.ready_url
        command = after._command
        after._command = [*command[:4], before._command[4], *command[5:]]
        after.address, after.url = before.address, before.url
        environments = dict.fromkeys(OLD_RANKS, old)
        with Job(directory / "job", before.target, environments) as job:
            served = [_serve(exporter, job, seconds) for exporter in (before, after, before)]
            with after:
                _wait(after)
                job.end()
                shown = _steps(after)
        counted = {life.rank: len(life.steps) for life in job.lives()}
    refused = sum(answers for _, answers in served)
    return [
        row("upgrade: exporters before the last", len(served)),
        row("upgrade: ranks that one of them did not show", sum(RANKS - n for n, _ in served), 0),
        row("upgrade: snapshots refused", refused, 0),
        row("upgrade: steps that the ranks counted", sum(counted.values())),
        row("upgrade: ranks whose last counter is another", _differ(shown, counted), 0),
    ]


def _serve(exporter: ExporterProcess, job: Job, seconds: float) -> tuple[int, int]:
    """Run *exporter* for *seconds*; return how many ranks it showed and snapshots it refused."""
    with exporter:
        _wait(exporter)
        time.sleep(seconds)
        shown = len(_steps(exporter))
        refused = sum(value for result, value in _results(exporter).items() if result not in GOOD)
    return shown, int(refused)


GOOD: Final = ("accepted", "ignored")


def _wait(exporter: ExporterProcess) -> None:
    wait_for(lambda: len(_steps(exporter)) == RANKS or None, START_SECONDS)


def _steps(exporter: ExporterProcess) -> dict[int, float]:
    return {
        int(labels["rank"]): value for labels, value in _samples(exporter, "rankskew_steps_total")
    }


def _results(exporter: ExporterProcess) -> dict[str, float]:
    pushed = _samples(exporter, "rankskew_ingest_snapshots_total")
    return {labels["result"]: value for labels, value in pushed}


def _samples(exporter: ExporterProcess, name: str) -> Iterator[tuple[dict[str, str], float]]:
    from prometheus_client.parser import text_string_to_metric_families

    text = get(f"{exporter.url}/metrics").decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                yield dict(sample.labels), sample.value


def _differ(shown: dict[int, float], counted: dict[int, int]) -> int:
    return sum(shown.get(rank) != steps for rank, steps in counted.items())


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
