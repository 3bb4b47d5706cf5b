"""Tests of which rank a process speaks for, and from when on."""

from collections.abc import Callable

import pytest

from exporter.ranks.store import RankStore
from rank_probe.probe import Probe
from rank_probe.process import children
from rank_probe.process.own_rank import OwnRank
from rank_probe.torch_hooks import process_group

TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "RANKSKEW_JOB_ID": "j"}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
SLURM["SLURM_STEP_ID"] = "0"
TASK_PER_NODE = SLURM | {"SLURM_NNODES": "2"}
TASKS_ON_NODE = SLURM | {"SLURM_NNODES": "1", "SLURM_LOCALID": "1"}

Set = Callable[..., None]


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Set what torch's process group says; without arguments, that there is none."""

    def set_group(*place: int) -> None:
        monkeypatch.setattr(process_group, "rank_and_world_size", lambda: place or None)

    set_group()
    return set_group


def own_rank(environment: dict[str, str], *, has_stepped: bool = False) -> OwnRank:
    return OwnRank(environment, {}, lambda: has_stepped)


def place(own: OwnRank) -> tuple[int, int] | None:
    me = own.who()
    return None if me is None else (me.rank, me.world_size)


@pytest.mark.parametrize(
    ("environment", "at_once", "after_a_step"),
    [
        ({}, None, (0, 1)),
        (TORCHRUN, (2, 4), (2, 4)),
        (TASKS_ON_NODE, (1, 2), (1, 2)),
        (TASK_PER_NODE, None, (1, 2)),
        (SLURM, None, (1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, None, (1, 2)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, None, (0, 1)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, (3, 4), (3, 4)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "1"}, None, (3, 4)),
    ],
)
def test_launcher_is_believed_at_once_if_it_started_this_process(
    group: Set,
    environment: dict[str, str],
    at_once: tuple[int, int] | None,
    after_a_step: tuple[int, int],
) -> None:
    """A node's only task may start the ranks itself, so nobody is named before it trains."""
    assert place(own_rank(environment)) == at_once
    assert place(own_rank(environment, has_stepped=True)) == after_a_step


@pytest.mark.parametrize("environment", [{}, TORCHRUN, TASK_PER_NODE, TASKS_ON_NODE])
def test_process_group_wins(group: Set, environment: dict[str, str]) -> None:
    """Its rank and size are the job's, whatever the launcher counted; also once it is gone."""
    mine = own_rank(environment)
    mine.who()
    group(5, 8)
    assert place(mine) == (5, 8)
    group()

    assert place(mine) == (5, 8)


def test_group_of_one_in_a_larger_job_is_not_the_job(group: Set) -> None:
    """Where each rank has a group of its own, all would be rank 0."""
    group(0, 1)

    assert place(own_rank(TORCHRUN)) == (2, 4)
    assert place(own_rank({})) == (0, 1)


def test_tasks_number_on_its_node_is_not_its_ranks(group: Set) -> None:
    """Both ranks of one SLURM task would be local rank 0."""
    group(1, 2)
    me = own_rank({**TASK_PER_NODE, "SLURM_PROCID": "0"}).who()

    assert me is not None
    assert (me.rank, me.local_rank, me.job_id) == (1, "", "7")


def test_child_is_not_who_its_parent_is(group: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    """It inherits its parent's variables; a process group of its own makes it a rank."""
    monkeypatch.setattr(children, "is_child", lambda: True)
    monkeypatch.setattr(children, "index", lambda: 3)
    child = own_rank(TORCHRUN, has_stepped=True)
    assert child.who() is None
    group(7, 8)
    me = child.who()

    assert me is not None
    assert (me.rank, me.local_rank) == (7, "3")


def test_variables_of_the_script_count(group: Set) -> None:
    """The leading node names an unnamed job, and scripts without a launcher set it themselves."""
    environment = {"HOSTNAME": "gpu8"}
    mine = own_rank(environment)
    assert mine.who() is None
    environment["MASTER_ADDR"] = "gpu7"
    group(1, 2)
    me = mine.who()

    assert me is not None
    assert me.job_id == "local-gpu7"


def test_rank_that_gets_another_number_leaves_no_dead_one(group: Set) -> None:
    """The number that it was started with is ended; the next may have been another's."""
    store = RankStore()
    first, second = (
        Probe(automatic=True, environment=TORCHRUN | {"RANK": rank}) for rank in ("0", "1")
    )
    for probe in (first, second):
        snapshot = probe.snapshot()
        assert snapshot is not None
        store.put(snapshot)
    for probe, rank in ((second, 0), (first, 1)):
        group(rank, 4)
        for _ in range(2):
            snapshot = probe.snapshot()
            assert snapshot is not None
            store.put(snapshot)  # The end of a number may have its new owner already.

    assert [held.snapshot.rank for held in store.ranks()] == [0, 1]
    assert not any(held.snapshot.finished for held in store.ranks())
