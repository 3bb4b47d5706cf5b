"""Ranks and exporters of an older release and of this one understand each other."""

import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from devstack.load import samples_on, scrape
from devstack.parts import ROOT, ExporterProcess
from devstack.process import wait_for
from tests.nightly.figures import full_or_short, hold, row
from tests.nightly.surviving_job import RANKS, Job

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

# Written when the schema was, and unchanged since: what understands it understands every release.
FIRST_SNAPSHOT: Final = "tests/fixtures/ingest/snapshot_schema_1.json"
# What an exporter reads and imports: its pages of docs too.
PACKAGES: Final = ("exporter", "rank_probe", "rankskew", "alerts", "dashboards", "docs")


def git(*arguments: str) -> bytes:
    """Return what git says of this tree."""
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, check=True
    ).stdout


def old_release(directory: Path) -> dict[str, str]:
    """Return the environment in which exporter and probe are those that wrote FIRST_SNAPSHOT."""
    if git("rev-parse", "--is-shallow-repository").strip() == b"true":
        pytest.skip("the clone lacks older commits: git fetch --unshallow")
    commit = git("log", "-1", "--format=%H", "--", FIRST_SNAPSHOT).decode().strip()
    directory.mkdir()
    archive = git("archive", commit, *PACKAGES)
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archive, check=True)
    # Not from the folder in which it is started, which has the new ones.
    return {"PYTHONPATH": f"{directory}:{ROOT}", "PYTHONSAFEPATH": "1"}


def steps(exporter: ExporterProcess) -> dict[int, float]:
    """Return the steps of each rank on its page."""
    found = samples_on(scrape(exporter.address), "rankskew_steps_total")
    return {int(labels["rank"]): value for labels, value in found}


def refused(exporter: ExporterProcess) -> float:
    """Return how many snapshots it did not take."""
    pushed = samples_on(scrape(exporter.address), "rankskew_ingest_snapshots_total")
    return sum(count for labels, count in pushed if labels["result"] not in ("accepted", "ignored"))


def test_upgrade_costs_no_count(tmp_path: Path) -> None:
    """Ranks of both releases train on the old exporter, this one, the old and this one again."""
    old = old_release(tmp_path / "old")
    before = ExporterProcess(tmp_path, environment=old, flags=["--path.state="])
    port = int(before.address.rpartition(":")[2])
    after = ExporterProcess(tmp_path, port, flags=["--path.state="])
    turned_away = 0.0
    with Job(tmp_path / "job", before.target, {2: old, 3: old}) as job:
        for exporter in (before, after, before):
            with exporter:
                shown = wait_for(lambda e=exporter: len(steps(e)) == RANKS or None, 60)  # type: ignore[misc]
                assert shown, f"lacks ranks:\n{exporter.last_lines()}"
                time.sleep(full_or_short(10, 3))
                turned_away += refused(exporter)
        with after:
            assert wait_for(lambda: len(steps(after)) == RANKS or None, 60)
            job.end()
            last = steps(after)
            turned_away += refused(after)
        counted = {life.rank: len(life.steps) for life in job.lives()}
    rows = [
        row("upgrade: snapshots refused", turned_away, 0),
        row("upgrade: steps that the ranks counted", sum(counted.values())),
        row("upgrade: ranks whose last counter is another", int(last != counted), 0),
    ]
    hold("faults", rows)
