"""Tests of who a process is, by what its launcher set."""

import os
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

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


def test_script_of_a_slurm_job_is_none_of_its_tasks() -> None:
    """It runs before them, and a single rank that it starts is not the first of many."""
    script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
    task = script | {"SLURM_STEP_ID": "0"}

    assert from_environment(script) is None
    assert not is_certain(script)
    assert is_certain(task)
    assert from_environment(script | {"SLURM_NTASKS": "1", "SLURM_NNODES": "1"}) is not None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, f"local-{NODE}"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1"}, f"local-{NODE}"),
        ({"MASTER_ADDR": "localhost", "HOSTNAME": "c0ffee"}, "local-c0ffee"),
        ({"MASTER_ADDR": "gpu7", "HOSTNAME": "gpu8"}, "local-gpu7"),
        ({"MASTER_ADDR": "gpu7", "PMIX_NAMESPACE": "prterun-gpu7-9@1"}, "prterun-gpu7-9@1"),
        ({"TORCHELASTIC_RUN_ID": "run"}, "run"),
        ({"SLURM_JOB_ID": "4711", "TORCHELASTIC_RUN_ID": "run"}, "4711"),
        ({"RANKSKEW_JOB_ID": "mine", "SLURM_JOB_ID": "4711"}, "mine"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "bert-worker-3"}, "bert"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "bert-12"}, "bert"),
        ({"HOSTNAME": "bert-12"}, "local-bert-12"),
        ({**POD, "HOSTNAME": "bert-12"}, "nlp/bert"),
        ({**POD, "TORCHELASTIC_RUN_ID": "run"}, "nlp/run"),
        ({**POD, "RANKSKEW_JOB_ID": "mine", "TORCHELASTIC_RUN_ID": "run"}, "mine"),
        ({"POD_NAMESPACE": "nlp", "TORCHELASTIC_RUN_ID": "run"}, "run"),
    ],
)
def test_job_is_named_by_the_first_who_did(environment: dict[str, str], expected: str) -> None:
    """The user's name wins, then the scheduler's, then the launcher's."""
    assert job_id(environment) == expected


@pytest.mark.parametrize(
    ("environment", "source"),
    [
        ({"RANKSKEW_JOB_ID": "mine", "SLURM_JOB_ID": "4711"}, "RANKSKEW_JOB_ID"),
        ({**POD, "RANKSKEW_JOB_ID": "mine"}, "RANKSKEW_JOB_ID"),
        ({"SLURM_JOB_ID": "4711", "TORCHELASTIC_RUN_ID": "run"}, "SLURM_JOB_ID"),
        ({**POD, "TORCHELASTIC_RUN_ID": "run"}, "TORCHELASTIC_RUN_ID, after the pod's namespace"),
        ({**POD, "HOSTNAME": "bert-12"}, "HOSTNAME, the pod's name, after the pod's namespace"),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "bert-12"},
            "HOSTNAME, the pod's name",
        ),
        ({"MASTER_ADDR": "gpu7"}, "MASTER_ADDR, as nothing names the job"),
        (POD | {"MASTER_ADDR": "127.0.0.1"}, "the node's name, as nothing names the job"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "the node's name, as nothing names the job"),
    ],
)
def test_source_of_the_name_is_said(environment: dict[str, str], source: str) -> None:
    """`rank-probe check` tells a person which variable named the job."""
    assert job_id_source(environment) == source


def test_source_of_the_rank_is_said() -> None:
    """It is the pair of variables that counts, not one that has no size of the world."""
    task = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}
    assert rank_source({"RANK": "0"} | task) == "SLURM_PROCID and SLURM_NTASKS"
    assert rank_source({"RANK": "9", "WORLD_SIZE": "8"}) is None


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


class Recorded(dict[str, str]):
    """An environment that remembers what it was asked for."""

    def __init__(self, known: dict[str, str]) -> None:
        super().__init__(known)
        self.asked: set[str] = set()

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


def test_list_of_variables_is_complete() -> None:
    """Who keeps only VARIABLES of an environment finds the same identity in them."""
    environment = Recorded({"RANK": "0", "WORLD_SIZE": "1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    from_environment(environment)

    assert {"RANK", "HOSTNAME", "RANKSKEW_PEER_GROUP", "PMI_RANK"} <= VARIABLES
    assert environment.asked <= VARIABLES
