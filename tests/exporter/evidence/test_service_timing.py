"""What the service hands to the explanation, and when it tells what that says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from exporter.causes.model import UNKNOWN, Cause, Evidence, Lateness, Peers, ThreadState
from exporter.evidence.late_causes import LateCauses
from exporter.evidence.sampler import Sampler
from exporter.evidence.service import EvidenceService
from exporter.processes.host_watch import HostWatch
from exporter.processes.worker_states import LateRankProcess
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from tests.exporter.clock import Clock
from tests.exporter.nvml.fixed import FixedNvml
from tests.exporter.snapshots import late, snapshot, verdict

LATE = 2
WORKERS = Cause(
    "input", "workers", 0.9, "it waits", "`py-spy dump --pid WORKER_PID`; `pgrep -P PID`"
)
SLEEPS = Cause("input", "worker_sleep", 0.9, "it waits", "`py-spy dump --pid WORKER_PID`")


class Workers:
    """Those of a late rank's loader: seen once *states* are set."""

    def __init__(self) -> None:
        self.states: Sequence[ThreadState] = ()

    def follow(self, ranks: Sequence[LateRankProcess]) -> None:
        """Look at nothing."""

    def of(self, job_id: str, rank: int) -> Sequence[ThreadState]:
        """Return what the busiest does."""
        return self.states

    def pid(self, job_id: str, rank: int) -> int | None:
        """Return its process ID."""
        return 88 if self.states else None


class Node:
    """A node on which rank LATE is late, and *says* is why."""

    def __init__(self, folder: Path, says: Cause | None = None) -> None:
        self.clock = Clock()
        self.store = RankStore(clock=self.clock)
        self.causes, self.workers, self.says = LateCauses(), Workers(), says
        self.late: Lateness | None = None
        self.evidence = Evidence({})
        self.peers: Peers = {}
        host = HostWatch(folder, folder)
        sampler = Sampler(self.store, FixedNvml(None), dict, host, lambda _: None)
        self._service = EvidenceService(
            self.store,
            NodeJobs(self.store),
            sampler,
            host,
            self.causes,
            self.workers,
            "gpu-1",
            self._explain,
        )
        self._sequence = 0

    def push(self, rank: int, job_id: str = "llama", **changes: Any) -> None:
        """Let *rank* push."""
        self._sequence += 1
        said = {"verdict": verdict(late=[late(rank=LATE)]), "verdict_age_seconds": 1.0, **changes}
        self.store.put(snapshot(rank=rank, job_id=job_id, sequence=self._sequence, **said))

    def look(self, seconds: float = 0.0) -> Cause | None:
        """Return what is told of the late rank after so many *seconds*."""
        self.clock.seconds += seconds
        self._service.look(self.clock.seconds)
        return self.causes.of("llama", LATE)

    def known(self) -> Cause | None:
        """Return what is told once there are figures since the onset."""
        self.look()
        return self.look(4.0)

    def _explain(self, found: Lateness, evidence: Evidence, peers: Peers) -> Cause | None:
        self.late, self.evidence, self.peers = found, evidence, peers
        return self.says


@pytest.mark.parametrize(
    ("others", "is_alone"),
    [([], True), ([("llama", 1)], False), ([("other", 1)], True)],
)
def test_rank_is_alone_without_another_of_its_job(
    tmp_path: Path, others: list[tuple[str, int]], is_alone: bool
) -> None:
    """Whatever its node suffers from may then delay only this rank."""
    node = Node(tmp_path)
    node.push(LATE)
    for job_id, rank in others:
        node.push(rank, job_id)
    node.known()

    assert node.late is not None
    assert node.late.is_alone is is_alone


def test_workers_are_told_once_they_were_seen(tmp_path: Path) -> None:
    """For three seconds: the first that is told goes to the pager."""
    node = Node(tmp_path, WORKERS)
    node.push(LATE)
    assert node.look() is None
    assert node.look(2.0) is None

    node.workers.states, node.says = [ThreadState("data", "sleep", 1.0)], SLEEPS
    told = node.look(2.0)
    assert told is not None
    assert (told.detail, told.first_action) == ("worker_sleep", "`py-spy dump --pid 88`")


def test_workers_that_nobody_sees_are_told_after_three_seconds(tmp_path: Path) -> None:
    """They may be another user's; where none is known, its name stays."""
    node = Node(tmp_path, WORKERS)
    node.push(LATE, pid=77)
    assert node.look() is None
    assert node.look(2.0) is None

    told = node.look(2.0)
    assert told is not None
    assert told.first_action == "`py-spy dump --pid WORKER_PID`; `pgrep -P 77`"


def test_workers_that_were_seen_to_be_busy_are_told_at_once(tmp_path: Path) -> None:
    """Nothing better will come."""
    node = Node(tmp_path, WORKERS)
    node.workers.states = [ThreadState("data", "running", 1.0)]
    node.push(LATE)

    told = node.known()
    assert told is not None
    assert told.first_action == "`py-spy dump --pid 88`; `pgrep -P 4711`"


def test_no_cause_is_told_without_figures_since_the_onset(tmp_path: Path) -> None:
    """What its threads do alone would be half of the story."""
    node = Node(tmp_path, SLEEPS)
    node.push(LATE)
    told = [node.look(2.0) for _ in range(3)]

    assert told[:2] == [None, None]
    assert told[2] is not None


def test_unknown_is_told_once_its_threads_were_looked_at(tmp_path: Path) -> None:
    """That begins when it is known to be late; its figures are kept since long before."""
    node = Node(tmp_path, Cause(UNKNOWN, "", 0.0, "nothing", "look"))
    node.push(LATE, verdict=verdict(late=[]))
    for _ in range(8):
        node.look(5.0)
        node.push(LATE, verdict=verdict(late=[]))

    told = []
    for _ in range(6):
        node.push(LATE)
        told.append(node.look(2.0))
    assert told[:5] == [None] * 5
    assert told[5] is not None


def test_rank_that_is_late_again_waits_again(tmp_path: Path) -> None:
    """Its workers are looked at anew."""
    node = Node(tmp_path, WORKERS)
    node.push(LATE)
    for _ in range(3):
        node.look(2.0)
    node.push(LATE, verdict=verdict(late=[]))
    assert node.look(6.0) is None

    node.push(LATE)
    assert node.look(6.0) is None


def test_duties_that_peers_lack_are_known_to_be_none(tmp_path: Path) -> None:
    """Of the peers on this node; with the join it is the same figures."""
    node = Node(tmp_path)
    for steps in (100, 120):
        for rank in (0, 1, 3):
            node.push(rank, steps=steps, stage_seconds={"data": steps / 10, "sync": 1.0})
        node.push(LATE, steps=steps, stage_seconds={"data": 1.0, "checkpoint": steps / 10})
        node.look(5.0)

    assert node.peers["checkpoint_seconds"].upper_third == 0.0
    assert node.peers["data_seconds"].median == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("loader", "facts"), [("", {}), ("f (a.py:1)", {"saturated_workers": "f (a.py:1)"})]
)
def test_what_the_workers_run_is_known(tmp_path: Path, loader: str, facts: dict[str, str]) -> None:
    """From the rank itself, which knows its dataset."""
    node = Node(tmp_path)
    node.push(LATE, loader=loader)
    node.known()

    assert node.evidence.facts == facts


def test_rank_without_a_cause_is_looked_at_each_second(tmp_path: Path) -> None:
    """Its first page waits for it; once it has one, as often as all others."""
    node = Node(tmp_path, SLEEPS)
    node.push(LATE)
    seen = []
    for _ in range(8):
        node.evidence = Evidence({})
        node.look(1.0)
        seen.append(node.late is not None)
        node.late = None

    assert seen == [False, False, False, True, False, True, False, True]
