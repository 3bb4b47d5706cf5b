"""Tests of who a process is, by what its launcher set."""

import os
from pathlib import Path

import pytest

from rank_probe.process.identity import (
    NAMESPACE_FILE,
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


def test_nothing_set_is_no_identity() -> None:
    """Without a launcher nobody knows the rank."""
    assert from_environment({}) is None


def test_torchrun_names_everything() -> None:
    """Rank, node, job and attempt come from torchrun's variables."""
    me = from_environment(TORCHRUN)

    assert me is not None
    assert (me.job_id, me.rank, me.world_size) == ("llama", 5, 8)
    assert (me.local_rank, me.node_rank, me.attempt) == ("1", "1", 2)
    assert me.peer_group == "all"


def test_slurm_names_everything() -> None:
    """srun's variables serve where torchrun's are missing."""
    me = from_environment(
        {
            "SLURM_JOB_ID": "4711",
            "SLURM_PROCID": "9",
            "SLURM_NTASKS": "16",
            "SLURM_LOCALID": "1",
            "SLURM_NODEID": "1",
            "SLURM_STEP_ID": "0",
            "SLURM_RESTART_COUNT": "1",
        }
    )

    assert me is not None
    assert (me.job_id, me.rank, me.world_size) == ("4711", 9, 16)
    assert (me.local_rank, me.node_rank, me.attempt) == ("1", "1", 1)


def test_torchrun_inside_slurm_ranks_by_torchrun() -> None:
    """One srun task per node runs torchrun: its ranks count, the job is SLURM's."""
    slurm = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    me = from_environment(TORCHRUN | slurm)

    assert me is not None
    assert (me.job_id, me.rank, me.world_size) == ("4711", 5, 8)


def test_script_of_a_slurm_job_is_none_of_its_tasks() -> None:
    """It runs before them, and a single rank that it starts is not the first of many."""
    script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
    task = script | {"SLURM_STEP_ID": "0"}

    assert from_environment(script) is None
    assert not is_certain(script)
    assert is_certain(task)
    assert from_environment(script | {"SLURM_NTASKS": "1", "SLURM_NNODES": "1"}) is not None


def test_requeued_job_under_torchrun_is_another_attempt() -> None:
    """torchrun counts from 0 again when Slurm starts it anew, so both counts matter."""
    me = from_environment(TORCHRUN | {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"})

    assert me is not None
    assert me.attempt == 3


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
    assert job_id(with_namespace(pod, tmp_path)) == "run"
    (tmp_path / NAMESPACE_FILE).parent.mkdir(parents=True)
    (tmp_path / NAMESPACE_FILE).write_text("vision\n")

    assert job_id(with_namespace(pod, tmp_path)) == "vision/run"
    assert job_id(with_namespace(pod | POD, tmp_path)) == "nlp/run"
    assert job_id(with_namespace({"TORCHELASTIC_RUN_ID": "run"}, tmp_path)) == "run"


@pytest.mark.parametrize("rank", ["", "x", "-1", "8"])
def test_impossible_rank_is_no_identity(rank: str) -> None:
    """A rank that is no number or outside the world is not believed."""
    assert from_environment(TORCHRUN | {"RANK": rank}) is None


def test_peer_group_comes_from_the_environment() -> None:
    """Ranks of unequal work are told apart by RANKSKEW_PEER_GROUP."""
    me = from_environment(TORCHRUN | {"RANKSKEW_PEER_GROUP": "pp1"})

    assert me is not None
    assert me.peer_group == "pp1"


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


def test_number_of_thousands_of_digits_is_none() -> None:
    """A variable that no launcher would set raises nothing, in training or elsewhere."""
    assert from_environment(TORCHRUN | {"RANK": "9" * 5000}) is None


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


def test_rank_and_size_are_of_one_launcher() -> None:
    """A script that starts ranks within a SLURM task sets their number, not who they are."""
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7"}
    me = from_environment(slurm | {"WORLD_SIZE": "2", "LOCAL_RANK": "1"})

    assert me is not None
    assert (me.rank, me.world_size) == (0, 1)
