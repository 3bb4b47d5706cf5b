"""Tests of who a process is by what its launcher set, and from when on it speaks for that rank."""

import os
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from rank_probe.process import children
from rank_probe.process.identity import (
    VARIABLES,
    from_environment,
    is_certain,
    job_id,
    job_id_source,
    peer_group,
    rank_source,
    with_namespace,
)
from rank_probe.process.own_rank import OwnRank
from rank_probe.torch_hooks import process_group

NODE = os.uname().nodename
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAMESPACE": "nlp"}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "llama",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "9",
    "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_RESTART_COUNT": "1",
}


def kept(environment: dict[str, str]) -> dict[str, str]:
    """Return what an exporter keeps of the *environment* of another process."""
    return {name: value for name, value in environment.items() if name in VARIABLES}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, ("llama", "all", 5, 8, "1", "1", 2)),
        (SLURM, ("4711", "all", 9, 16, "1", "1", 1)),
        # One task a node runs torchrun: its ranks count, the job is SLURM's. torchrun counts
        # attempts from 0 again when SLURM starts it anew, so both counts matter.
        (TORCHRUN | SLURM, ("4711", "all", 5, 8, "1", "1", 3)),
        (TORCHRUN | {"RANKSKEW_PEER_GROUP": "pp1"}, ("llama", "pp1", 5, 8, "1", "1", 2)),
        # A script that starts ranks within a task of SLURM sets their number, not who they are.
        (SLURM | {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}, ("4711", "all", 9, 16, "0", "1", 1)),
    ],
)
def test_launcher_names_everything(environment: dict[str, str], expected: tuple[Any, ...]) -> None:
    """Job, peer group, rank, world size, local rank, node and attempt come from its variables."""
    me = from_environment(environment)

    assert me is not None
    assert astuple(me) == expected
    # Who keeps only VARIABLES of an environment finds the same in them.
    assert from_environment(kept(environment)) == me


def test_script_of_a_slurm_job_is_none_of_its_tasks() -> None:
    """It runs before them, and a single rank that it starts is not the first of many.

    It is the pair of variables that counts, not one that has no size of the world.
    """
    script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
    task = script | {"SLURM_STEP_ID": "0"}

    assert from_environment(script) is None
    assert not is_certain(script)
    assert is_certain(task)
    assert rank_source({"RANK": "0"} | task) == "SLURM_PROCID and SLURM_NTASKS"
    assert rank_source({"RANK": "9", "WORLD_SIZE": "8"}) is None
    assert from_environment(script | {"SLURM_NTASKS": "1", "SLURM_NNODES": "1"}) is not None


UNNAMED = "as nothing names the job"
IN_POD = "after the pod's namespace"


@pytest.mark.parametrize(
    ("environment", "expected", "source"),
    [
        ({}, f"local-{NODE}", f"the node's name, {UNNAMED}"),
        (
            {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1"},
            *(f"local-{NODE}", f"the node's name, {UNNAMED}"),
        ),
        (
            {"MASTER_ADDR": "localhost", "HOSTNAME": "c0ffee"},
            *("local-c0ffee", f"the node's name, {UNNAMED}"),
        ),
        (
            {"MASTER_ADDR": "gpu7", "HOSTNAME": "gpu8"},
            *("local-gpu7", f"MASTER_ADDR, {UNNAMED}"),
        ),
        (
            {"MASTER_ADDR": "gpu7", "PMIX_NAMESPACE": "prterun-gpu7-9@1"},
            *("prterun-gpu7-9@1", "PMIX_NAMESPACE"),
        ),
        ({"TORCHELASTIC_RUN_ID": "run"}, "run", "TORCHELASTIC_RUN_ID"),
        ({"SLURM_JOB_ID": "4711", "TORCHELASTIC_RUN_ID": "run"}, "4711", "SLURM_JOB_ID"),
        ({"RANKSKEW_JOB_ID": "mine", "SLURM_JOB_ID": "4711"}, "mine", "RANKSKEW_JOB_ID"),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "bert-worker-3"},
            *("bert", "HOSTNAME, the pod's name"),
        ),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "bert-12"},
            *("bert", "HOSTNAME, the pod's name"),
        ),
        ({"HOSTNAME": "bert-12"}, "local-bert-12", f"the node's name, {UNNAMED}"),
        ({**POD, "HOSTNAME": "bert-12"}, "nlp/bert", f"HOSTNAME, the pod's name, {IN_POD}"),
        ({**POD, "TORCHELASTIC_RUN_ID": "run"}, "nlp/run", f"TORCHELASTIC_RUN_ID, {IN_POD}"),
        (
            {**POD, "RANKSKEW_JOB_ID": "mine", "TORCHELASTIC_RUN_ID": "run"},
            *("mine", "RANKSKEW_JOB_ID"),
        ),
        ({"POD_NAMESPACE": "nlp", "TORCHELASTIC_RUN_ID": "run"}, "run", "TORCHELASTIC_RUN_ID"),
    ],
)
def test_job_is_named_by_the_first_who_did(
    environment: dict[str, str], expected: str, source: str
) -> None:
    """The user's name wins, then the scheduler's, then the launcher's; `check` says whose it is."""
    assert job_id(environment) == job_id(kept(environment)) == expected
    assert job_id_source(environment) == source


def test_namespace_is_read_where_the_pod_does_not_pass_it_on(tmp_path: Path) -> None:
    """Jobs of one name in two namespaces are two, without a line in their manifests."""
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "TORCHELASTIC_RUN_ID": "run"}
    file = tmp_path / "namespace"
    assert job_id(with_namespace(pod, file)) == "run"
    file.symlink_to("data")  # As Kubernetes mounts it.
    (tmp_path / "data").write_text("vision\n")

    assert job_id(with_namespace(pod, file)) == "vision/run"
    assert job_id(with_namespace(pod | POD, file)) == "nlp/run"
    assert job_id(with_namespace({"TORCHELASTIC_RUN_ID": "run"}, file)) == "run"


@pytest.mark.parametrize("rank", ["", "x", "-1", "8", "9" * 5000])
def test_impossible_rank_is_no_identity(rank: str) -> None:
    """A rank that is no number or outside the world is not believed; none is the default."""
    assert from_environment(TORCHRUN | {"RANK": rank}) is None
    assert from_environment({}) is None


@pytest.mark.parametrize(
    ("coordinates", "gpu_model", "expected"),
    [
        ({}, "", "all"),
        ({"dp": "3", "tp": "1"}, "", "all"),
        ({"pp": "0", "dp": "3"}, "", "pp0"),
        ({}, "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ({"pp": "1"}, "NVIDIA L4", "pp1 NVIDIA L4"),
    ],
)
def test_peers_share_pipeline_stage_and_gpu_model(
    coordinates: dict[str, str], gpu_model: str, expected: str
) -> None:
    """Only what makes work unequal divides ranks; where nothing is known all are peers."""
    assert peer_group(coordinates, gpu_model) == expected


RANK_2_OF_4 = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "RANKSKEW_JOB_ID": "j"}
TASK = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
TASK["SLURM_STEP_ID"] = "0"
TASK_PER_NODE = TASK | {"SLURM_NNODES": "2"}
TASKS_ON_NODE = TASK | {"SLURM_NNODES": "1", "SLURM_LOCALID": "1"}

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
        (RANK_2_OF_4, (2, 4), (2, 4)),
        (TASKS_ON_NODE, (1, 2), (1, 2)),
        (TASK_PER_NODE, None, (1, 2)),
        (TASK, None, (1, 2)),
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


@pytest.mark.parametrize("environment", [{}, RANK_2_OF_4, TASK_PER_NODE, TASKS_ON_NODE])
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

    assert place(own_rank(RANK_2_OF_4)) == (2, 4)
    assert place(own_rank({})) == (0, 1)


def test_tasks_number_on_its_node_is_not_its_ranks(group: Set) -> None:
    """Both ranks of one TASK task would be local rank 0."""
    group(1, 2)
    me = own_rank({**TASK_PER_NODE, "SLURM_PROCID": "0"}).who()

    assert me is not None
    assert (me.rank, me.local_rank, me.job_id) == (1, "", "7")


def test_child_is_not_who_its_parent_is(group: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    """It inherits its parent's variables; a process group of its own makes it a rank."""
    monkeypatch.setattr(children, "is_child", lambda: True)
    monkeypatch.setattr(children, "index", lambda: 3)
    child = own_rank(RANK_2_OF_4, has_stepped=True)
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
