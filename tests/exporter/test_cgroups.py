"""Pods, containers and Slurm jobs are identified by the cgroup paths that their managers use."""

import pytest

from exporter.cgroups import Cgroup, parse

POD = "12345678-9abc-def0-1234-56789abcdef0"
STATIC_POD = "0123456789abcdef0123456789abcdef"
CONTAINER = "0123456789abcdef" * 4
SLICE = f"kubepods-burstable-pod{POD.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    "text", ["", "0::/\n", "0::/user.slice/user-1000.slice/session-3.scope", "garbage", ":::"]
)
def test_process_of_nobody_in_particular_says_nothing(text: str) -> None:
    """A login session, or an invalid file, is neither pod nor job."""
    assert parse(text) == Cgroup()


@pytest.mark.parametrize(
    "path",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{CONTAINER}.scope",
        f"0::/kubepods.slice/{SLICE}/crio-{CONTAINER}.scope",
        f"12:cpu:/kubepods/burstable/pod{POD}/{CONTAINER}\n1:name=systemd:/\n",
        f"0::/../../{SLICE}/docker-{CONTAINER}.scope",
        # kind: the outer container is the node.
        f"0::/docker/{'f' * 64}/kubelet.slice/kubelet-kubepods.slice/{SLICE}/x-{CONTAINER}.scope",
    ],
)
def test_pod_and_container_are_told(path: str) -> None:
    """Either version of cgroups, either driver and each runtime give the same."""
    cgroup = parse(path)

    assert (cgroup.pod_uid, cgroup.container_id) == (POD, CONTAINER)
    assert cgroup.container.replace("_", "-") == POD


def test_static_pod_has_a_uid_without_dashes() -> None:
    """The uid of a pod from a file of the node is a hash."""
    assert parse(f"0::/kubepods/pod{STATIC_POD}/{CONTAINER}").pod_uid == STATIC_POD


@pytest.mark.parametrize(
    "path",
    [
        "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3",
        "0::/system.slice/node1_slurmstepd.scope/job_4711/step_0/user/task_0",
        "9:memory:/slurm/uid_1000/job_4711/step_0/task_0",
    ],
)
def test_slurm_job_and_step_are_told(path: str) -> None:
    """Either version of cgroups gives job and step."""
    assert parse(path) == Cgroup(slurm_job_id="4711", slurm_step_id="0", container="4711")


def test_job_elsewhere_is_not_slurms() -> None:
    """A directory that is merely called like a job names none."""
    assert parse("0::/batch/job_4711/step_0").slurm_job_id == ""
