"""NCCL Inspector's figures are exposed with the labels of our ranks."""

from pathlib import Path

import pytest

from exporter.collectors.base import NotAvailable
from exporter.collectors.rank.nccl import RankNcclCollector
from exporter.listeners.peer import Peer
from exporter.nccl_inspector.watch import InspectorWatch, Speeds
from exporter.ranks.store import RankStore
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.collectors.expose import expose, series
from tests.exporter.nccl_inspector.lines import line
from tests.exporter.snapshots import snapshot


def shown(folder: Path, rank: Snapshot) -> list[str]:
    """Return the series of *rank* after process 4711 has written."""
    watch = InspectorWatch(folder, "example-hostname")
    watch.look()
    (folder / "example-hostname-pid4711.log").write_text(line(4711))
    watch.look()
    store = RankStore(clock=lambda: 2_000.0)
    store.put(rank)
    return series(expose(RankNcclCollector(store, watch)))


def test_node_without_inspector_has_no_such_collector() -> None:
    """Nobody who does not use the plugin pays for it."""
    with pytest.raises(NotAvailable, match=r"--collector\.rank_nccl\.directory"):
        RankNcclCollector(RankStore(), None)


def test_bandwidth_has_the_rank_of_its_process(tmp_path: Path) -> None:
    """The plugin knows a rank within a communicator and a process; we know which rank that is."""
    assert shown(tmp_path, snapshot(rank=3, pid=4711)) == [
        'rankskew_nccl_bus_bandwidth_bytes_per_second{collective="all_reduce",job_id="llama",'
        'peer_group="all",rank="3"} 4.85119099e+11'
    ]


@pytest.mark.parametrize("rank", [snapshot(pid=4712), snapshot(pid=4711, finished=True)])
def test_other_processes_have_none(tmp_path: Path, rank: Snapshot) -> None:
    """A process id that is used again, or never was ours, says nothing of this rank."""
    assert shown(tmp_path, rank) == []


@pytest.mark.parametrize(("uid", "is_shown"), [(0, True), (1_000, True), (1_001, False)])
def test_file_speaks_for_the_ranks_of_its_user_only(
    tmp_path: Path, uid: int, is_shown: bool
) -> None:
    """Whoever can write into the directory cannot make up figures for others' jobs."""
    watch = InspectorWatch(tmp_path, "example-hostname")
    watch._latest = {4711: Speeds(uid, {"all_reduce": 1.0})}
    store = RankStore(clock=lambda: 2_000.0)
    store.put(snapshot(pid=4711), Peer(1_000))

    assert bool(series(expose(RankNcclCollector(store, watch)))) is is_shown
