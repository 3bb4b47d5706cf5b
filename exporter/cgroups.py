"""Which Kubernetes pod or Slurm job a process belongs to, from its cgroup path."""

import re
from dataclasses import dataclass
from typing import Final

# kubepods-burstable-pod<uid>.slice of the systemd driver, kubepods/burstable/pod<uid> of cgroupfs;
# the uid of a static pod is a hash without dashes.
_POD: Final = re.compile(
    r"kubepods.*?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])"
)
# cri-containerd-<id>.scope, crio-<id>.scope, docker-<id>.scope or <id> alone.
_CONTAINER: Final = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
# /slurm/uid_0/job_7/step_0 in version 1, slurmstepd.scope/job_7/step_0 in version 2; since 26.05
# slurmstepd.scope/s5K1KKYAYG5D00/step_0, a SLUID, unless cgroup.conf has CgroupJobIdPaths. A node
# may run several slurmd: slurm_NODE/uid_0, NODE_slurmstepd.scope.
_SLURM_JOB: Final = re.compile(r"slurm.*?/(?:job_)?(\d{1,15}|s[0-9A-Z]{13})(?=/|$)", re.MULTILINE)
_SLURM_STEP: Final = re.compile(r"/(?:job_\d+|s[0-9A-Z]{13})/step_(\w{1,15})")
# Whose user may create cgroups of any name: /user.slice/user-1000.slice/user@1000.service/...
_USERS_OWN: Final = re.compile(r"^.*?:/user\.slice/.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Cgroup:
    """What the path shows, '' for what it does not. Unlike a variable, a process cannot forge it.

    *slurm_job* is the number of the job, or its SLUID. *container* identifies a pod, else a
    container, else a batch job. It joins all nested ones, outermost first: a process that may
    create cgroups, as in a privileged container, can append any name, but cannot change the outer
    ones.
    """

    pod_uid: str = ""
    container_id: str = ""
    slurm_job: str = ""
    slurm_step_id: str = ""
    container: str = ""

    @property
    def slurm_job_id(self) -> str:
        """The number of the Slurm job; '' where the path has its SLUID in place of it."""
        return self.slurm_job if self.slurm_job.isdecimal() else ""


def parse(text: str) -> Cgroup:
    """Return what /proc/<pid>/cgroup shows, for either version and either driver."""
    from_slurm = _USERS_OWN.sub("", text)
    return Cgroup(
        pod_uid=_last(_POD, text).replace("_", "-"),
        container_id=_last(_CONTAINER, text),
        slurm_job=_last(_SLURM_JOB, from_slurm),
        slurm_step_id=_last(_SLURM_STEP, from_slurm),
        container=_all(_POD, text) or _all(_CONTAINER, text) or _all(_SLURM_JOB, from_slurm),
    )


def _last(pattern: re.Pattern[str], text: str) -> str:
    """Return the innermost match: a cluster in a container (kind, k3d) has two of each."""
    found = [match for line in text.splitlines() for match in pattern.findall(line)]
    return str(found[-1]) if found else ""


def _all(pattern: re.Pattern[str], text: str) -> str:
    return " ".join(dict.fromkeys(pattern.findall(text)))
