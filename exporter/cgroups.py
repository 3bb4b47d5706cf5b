"""Which Kubernetes pod, Slurm or LSF job a process belongs to, from its cgroup path."""

import re
from dataclasses import dataclass
from typing import Final

# kubepods-burstable-pod<uid>.slice of the systemd driver, kubepods/burstable/pod<uid> of cgroupfs;
# the uid of a static pod is a hash without dashes. From a cgroup namespace of its own, of which the
# exporter's pod has one, a neighbour begins with /..
_POD: Final = re.compile(
    r"(?:kubepods.*?|:(?:/\.\.)+/(?:burstable/|besteffort/)?)"
    r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])"
)
# cri-containerd-<id>.scope, crio-<id>.scope, docker-<id>.scope or <id> alone.
_CONTAINER: Final = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
# Only root creates cgroups in the root and in slices: systemd delegates services and scopes, such
# as user@1000.service, below which their owner gives cgroups any name. Flux's jobs are units below
# the service of its user; nothing tells them from another user's units of that name.
_OF_USERS: Final = re.compile(r"/user@\d+\.service/.*")
_OF_ROOT: Final = r"^\d+:[^:\n]*:(?:/\.\.|/[^/\n]+\.slice)*"
# /slurm/uid_0/job_7/step_0 in version 1, slurmstepd.scope/job_7/step_0 in version 2; since 26.05
# slurmstepd.scope/s5K1KKYAYG5D00/step_0, a SLUID, unless cgroup.conf has CgroupJobIdPaths. A node
# may run several slurmd: slurm_NODE/uid_0, NODE_slurmstepd.scope.
_SLURM: Final = (
    _OF_ROOT + r"/(?:slurm(?:_[^/\n]+)?/uid_\d+|(?:[^/\n]+_)?slurmstepd\.scope)"
    r"/(?:job_)?(\d{1,15}|s[0-9A-Z]{13})(?=/|$)"
)
_SLURM_JOB: Final = re.compile(_SLURM, re.MULTILINE)
_SLURM_STEP: Final = re.compile(_SLURM + r"/step_(\w{1,15})")
# /lsf/CLUSTER/job.7.N.TIME, and job.7[2].N.TIME of an array.
_LSF_JOB: Final = re.compile(
    _OF_ROOT + r"/lsf/[^/\n]+/job\.(\d{1,15}(?:\[\d{1,9}\])?)\.\d+\.\d+(?=/|$)", re.MULTILINE
)


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
    lsf_job: str = ""
    container: str = ""

    @property
    def slurm_job_id(self) -> str:
        """The number of the Slurm job; '' where the path has its SLUID in place of it."""
        return self.slurm_job if self.slurm_job.isdecimal() else ""

    @property
    def allocation(self) -> str:
        """The batch job or pod, which was given GPUs of its own; '' for any other process."""
        return self.slurm_job or self.lsf_job or self.pod_uid


def parse(text: str) -> Cgroup:
    """Return what /proc/<pid>/cgroup shows, for either version and either driver."""
    trusted = _OF_USERS.sub("", text)
    return Cgroup(
        pod_uid=_last(_POD, text).replace("_", "-"),
        container_id=_last(_CONTAINER, text),
        slurm_job=_last(_SLURM_JOB, text),
        slurm_step_id=_last(_SLURM_STEP, text),
        lsf_job=_last(_LSF_JOB, text),
        container=_all(_POD, trusted)
        or _all(_CONTAINER, trusted)
        or _all(_SLURM_JOB, text)
        or _all(_LSF_JOB, text),
    )


def _last(pattern: re.Pattern[str], text: str) -> str:
    """Return the innermost match: a cluster in a container (kind, k3d) has two of each."""
    found = [match for line in text.splitlines() for match in pattern.finditer(line)]
    return found[-1][pattern.groups] if found else ""


def _all(pattern: re.Pattern[str], text: str) -> str:
    return " ".join(dict.fromkeys(pattern.findall(text)))
