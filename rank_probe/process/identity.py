"""Who this process is in its job, from the launcher's environment variables."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rank_probe.process.small_files import content

# The first one that is set wins. Without a rendezvous id, torchrun sets "none".
_GIVEN_JOB_ID = "RANKSKEW_JOB_ID"
_JOB_ID = (
    "FLUX_JOB_ID",  # Before Slurm's: Flux may run several jobs in one of Slurm.
    *("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "JOBSET_NAME", "RAY_JOB_ID"),
    *("LSB_BATCH_JID", "LSB_JOBID"),  # LSF's: the first has the index of an array, as in 7[2].
    "PBS_JOBID",
    "PMIX_NAMESPACE",  # Open MPI's
)
_SLURM_RANK = "SLURM_PROCID"
# By launcher: torchrun, Flux, Slurm, Open MPI, PMI (MPICH, Intel MPI), LSF's jsrun, PALS (HPE).
_RANK = (
    *("RANK", "FLUX_TASK_RANK", _SLURM_RANK, "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    *("JSM_NAMESPACE_RANK", "PALS_RANKID"),
)
_WORLD_SIZE = (
    *("WORLD_SIZE", "FLUX_JOB_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    *("JSM_NAMESPACE_SIZE", "PALS_SIZE"),
)
_LOCAL_RANK = (
    *("LOCAL_RANK", "FLUX_TASK_LOCAL_ID", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
    *("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_RANK", "PALS_LOCAL_RANKID"),
)
_NODE_RANK = (
    *("GROUP_RANK", "SLURM_NODEID", "OMPI_COMM_WORLD_NODE_RANK", "PALS_NODEID"),
    "NODE_RANK",
)
# Read by the process itself only, so they are not among VARIABLES.
_TASKS_AND_NODES = (
    (("FLUX_JOB_SIZE",), ("FLUX_JOB_NNODES",)),
    (("SLURM_NTASKS",), ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
)
_STEP = "SLURM_STEP_ID"
_TASKS_HERE = (
    *("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    *("JSM_NAMESPACE_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
)
_ATTEMPT = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_PEER_GROUP = "RANKSKEW_PEER_GROUP"
_KUBERNETES = "KUBERNETES_SERVICE_HOST"
# With the network of its node, a pod has the node's host name.
_POD_NAMES = ("POD_NAME", "HOSTNAME")
_NAMESPACE = "POD_NAMESPACE"
_MASTER = "MASTER_ADDR"

# Nothing else is read, so nothing else of another process's environment has to be kept.
VARIABLES: Final = frozenset(
    {_GIVEN_JOB_ID, *_JOB_ID, *_RANK, *_WORLD_SIZE, *_LOCAL_RANK, *_NODE_RANK, *_ATTEMPT}
    | {_STEP, _PEER_GROUP, _KUBERNETES, *_POD_NAMES, _NAMESPACE, _MASTER}
)
# Where Kubernetes mounts the namespace of a pod, unless this is turned off.
NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_NAMESPACE_BYTES: Final = 64
# No rank count has more digits; int() refuses thousands of digits, with an error.
_DIGITS: Final = 15

# Pods of a training job are named <job>-<role>-<index> (Kubeflow) or <job>-<index> (indexed Job).
_POD_SUFFIX = re.compile(r"(-(master|worker|launcher|node|replica))?-\d+$")
_THIS_NODE = re.compile(r"localhost|127\..*|::1|")

_DNS_LABEL = re.compile(r"[a-z0-9-]{0,63}")

EVERYBODY = "all"


@dataclass(frozen=True, slots=True)
class Identity:
    """One process of one run of a job."""

    job_id: str
    peer_group: str
    rank: int
    world_size: int
    local_rank: str
    node_rank: str
    attempt: int


def from_environment(environment: Mapping[str, str]) -> Identity | None:
    """Return the identity from torchrun, a scheduler, MPI or Kubernetes; None without a rank.

    A rank without a world size, or one that is not a number, counts as missing.
    """
    names = _names_of_rank(environment)
    if names is None:
        return None
    rank, world_size = (_number(environment, (name,)) or 0 for name in names)
    return for_rank(environment, rank, world_size) if rank < world_size else None


def _names_of_rank(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the variables that hold rank and world size; None if no launcher set both.

    Both come from the same launcher: a Slurm task may start ranks itself and set their world size.
    """
    for names in zip(_RANK, _WORLD_SIZE, strict=True):
        if names[0] == _SLURM_RANK and _is_batch_script(environment):
            continue
        if all(_number(environment, (name,)) is not None for name in names):
            return names
    return None


def is_certain(environment: Mapping[str, str]) -> bool:
    """Whether a launcher started this very process as a rank.

    torchrun, DeepSpeed and Accelerate set LOCAL_RANK. Slurm and MPI start tasks: several tasks on a
    node are ranks, but a single task may start the ranks itself. So may a pod that has a RANK.
    """
    if _first(environment, ("LOCAL_RANK",)) is not None:
        return True
    for names_of_tasks, names_of_nodes in _TASKS_AND_NODES:
        tasks, nodes = _number(environment, names_of_tasks), _number(environment, names_of_nodes)
        if tasks is not None and nodes is not None:
            return tasks > nodes and not _is_batch_script(environment)
    return (_number(environment, _TASKS_HERE) or 1) > 1


def for_rank(environment: Mapping[str, str], rank: int, world_size: int) -> Identity:
    """Return the identity of *rank*, known from elsewhere, with the rest from *environment*."""
    return Identity(
        job_id=job_id(environment),
        peer_group=environment.get(_PEER_GROUP) or EVERYBODY,
        rank=rank,
        world_size=world_size,
        local_rank=_first(environment, _LOCAL_RANK) or "",
        node_rank=_first(environment, _NODE_RANK) or "",
        # A job that Slurm requeues is a new one for torchrun, which counts from 0 again.
        attempt=sum(_number(environment, (name,)) or 0 for name in _ATTEMPT),
    )


def _is_batch_script(environment: Mapping[str, str]) -> bool:
    """Whether this is the script of a job with several tasks: Slurm numbers it 0 as well."""
    tasks = _number(environment, ("SLURM_NTASKS",)) or 1
    return tasks > 1 and _first(environment, (_STEP,)) is None


def peer_group(coordinates: Mapping[str, str], gpu_model: str) -> str:
    """Return the name of the ranks that should do equal work.

    They hold the same pipeline stage and run on the same GPU model; if neither is known, all ranks
    do. Data and tensor parallel ranks do equal work, so their coordinates do not split a group.
    """
    parts = [f"pp{coordinates['pp']}"] if coordinates.get("pp") else []
    return " ".join([*parts, *gpu_model.split()]) or EVERYBODY


def job_id(environment: Mapping[str, str]) -> str:
    """Return the name of the run; if it has none, `local-` and the node of its rank 0.

    Thus unnamed runs on different nodes are different jobs, and one run across nodes is one job.
    """
    return named_job_id(environment) or f"local-{_leading_node(environment)}"


def named_job_id(environment: Mapping[str, str]) -> str | None:
    """Return the name that the user, the scheduler or the launcher gave the run.

    In Kubernetes the namespace comes first, because jobs in two namespaces may share a name; a name
    from the user is used unchanged.
    """
    if given := _first(environment, (_GIVEN_JOB_ID,)):
        return given
    named = _first(environment, _JOB_ID)
    if _KUBERNETES not in environment:
        return named
    if named is None and (pod := _first(environment, _POD_NAMES)):
        named = _POD_SUFFIX.sub("", pod)
    namespace = environment.get(_NAMESPACE, "").strip()
    return f"{namespace}/{named}" if named and namespace else named


def job_id_source(environment: Mapping[str, str]) -> str:
    """Return where job_id() takes the name from: a variable, with what it is prefixed with."""
    pods = _POD_NAMES if _KUBERNETES in environment else ()
    for name in (_GIVEN_JOB_ID, *_JOB_ID, *pods):
        if _first(environment, (name,)) is not None:
            break
    else:
        if not _THIS_NODE.fullmatch(environment.get(_MASTER, "").strip()):
            return f"{_MASTER}, as nothing names the job"
        else:
            return "the node's name, as nothing names the job"
    name += ", the pod's name" if name in _POD_NAMES else ""
    has_namespace = _KUBERNETES in environment and environment.get(_NAMESPACE, "").strip()
    return f"{name}, after the pod's namespace" if has_namespace and name != _GIVEN_JOB_ID else name


def rank_source(environment: Mapping[str, str]) -> str | None:
    """Return the variables from which from_environment() takes the rank; None without a rank."""
    names = _names_of_rank(environment)
    if names is None or from_environment(environment) is None:
        return None
    return " and ".join(names)


def with_namespace(environment: Mapping[str, str], file: Path = NAMESPACE_FILE) -> dict[str, str]:
    """Return the *environment* of this very process with its pod's namespace, from *file*.

    Never that of another process: whoever owns it also decides what lies there.
    """
    known = dict(environment)
    if _KUBERNETES in known and not known.get(_NAMESPACE):
        try:
            text = content(file, _NAMESPACE_BYTES, follows_links=True).decode().strip()
        except (OSError, ValueError):  # Not in a pod, or its files are not readable.
            text = ""
        known[_NAMESPACE] = text if _DNS_LABEL.fullmatch(text) else ""
    return known


def _leading_node(environment: Mapping[str, str]) -> str:
    address = environment.get(_MASTER, "").strip()
    if not _THIS_NODE.fullmatch(address):
        return address
    return environment.get("HOSTNAME") or os.uname().nodename


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    values = (environment.get(name, "").strip() for name in names)
    return next((value for value in values if value and value != "none"), None)


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    value = _first(environment, names)
    if value is None or not value.isdecimal() or len(value) > _DIGITS:
        return None
    return int(value)
