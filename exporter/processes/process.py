"""One process of the node, from /proc/<pid>. What cannot be read is absent, not an error."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from exporter import cgroups
from exporter.cgroups import Cgroup
from exporter.ingest.values import LABEL_CHARACTERS
from exporter.processes.usage import stat
from rank_probe.process import identity
from rank_probe.process.small_files import beginning, cpu_list, names_in

# Nothing else of an environment, which may contain passwords, is kept or shown.
KEPT_VARIABLES: Final = identity.VARIABLES | {
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "SLURM_JOB_GPUS",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_USER",
    "SLURM_STEP_GPUS",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",  # Its older name.
}
# A list of sixteen GPUs by their full UUIDs; it is shortened before it becomes a label.
VALUE_CHARACTERS: Final = 1024
# Far beyond a launcher's environment. Any user can make a longer one, and psutil would read it all.
FILE_BYTES: Final = 1 << 18
ANCESTORS: Final = 32


@dataclass(frozen=True, slots=True)
class Process:
    """A process at one moment. A process id together with *start_ticks* is never reused.

    *ancestors* are its parent, its parent's parent and so on. *namespace_pid* is the process's own
    view of its id. *cpus* are those that its main thread may run on. *environment* has the
    KEPT_VARIABLES that it was started with, not those that it set later. *has_own_hostname* is
    whether its host name is a container's instead of the node's. None is "could not be read".
    """

    pid: int
    start_ticks: int
    name: str
    ancestors: tuple[int, ...] = ()
    uid: int | None = None
    namespace_pid: int | None = None
    cpus: frozenset[int] | None = None
    environment: Mapping[str, str] | None = None
    cgroup: Cgroup = field(default_factory=Cgroup)
    has_own_hostname: bool | None = None


class Proc:
    """Reads the proc file system at *path*.

    Reading an environment blocks while the process changes its memory map, and a process that hangs
    in the driver may do so forever: do not call this from the event loop.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def allocations(self) -> set[str]:
        """Return the allocations in which any process runs, on a GPU or not; 15 µs for each."""
        pids = filter(str.isdecimal, names_in(self._path))
        different = {self._text(pid, "cgroup") for pid in pids}
        return {cgroups.parse(text).allocation for text in different} - {""}

    def process(
        self, pid: int, known: Process | None = None, online_cpus: frozenset[int] = frozenset()
    ) -> Process | None:
        """Return process *pid*, None if there is none. *known* is the result of an earlier call.

        For a *known* process, only what can change is read again. Its CPUs are those of
        *online_cpus* that it may run on, or all that it may run on if *online_cpus* is empty.
        """
        found = stat(self._path, pid)
        if found is None:
            return None
        process = Process(pid, found.start_ticks, found.name)
        if known is not None and known.start_ticks == found.start_ticks:
            process = known
        process = self._with_status(process, online_cpus)
        if process.environment is None:
            process = replace(
                process,
                ancestors=self._ancestors(found.parent_pid),
                environment=self._environment(pid),
                cgroup=cgroups.parse(self._text(pid, "cgroup")),
                has_own_hostname=self._has_own_hostname(pid),
            )
        after = stat(self._path, pid)
        # Another process may have taken the id meanwhile.
        return process if after is not None and after.start_ticks == found.start_ticks else None

    def online_cpus(self) -> frozenset[int]:
        """Return the online CPUs; an affinity also includes those that could be plugged in."""
        lines = self._text("", "stat").splitlines()
        numbers = (line.split(maxsplit=1)[0].removeprefix("cpu") for line in lines if line.strip())
        return frozenset(int(number) for number in numbers if number.isdecimal())

    def _with_status(self, process: Process, online: frozenset[int]) -> Process:
        # psutil does not read NSpid, and its affinity needs a pid of our own namespace.
        lines = (line.partition(":\t") for line in self._text(process.pid, "status").splitlines())
        status = {name: value.strip() for name, _, value in lines}
        allowed = frozenset(cpu_list(status.get("Cpus_allowed_list", "")))
        return replace(
            process,
            uid=_last_number(status.get("Uid", "").split()[:1]),
            namespace_pid=_last_number(status.get("NSpid", "").split()),
            cpus=(allowed & online if online else allowed) or None,
        )

    def _ancestors(self, parent_pid: int) -> tuple[int, ...]:
        found: list[int] = []
        while parent_pid > 1 and len(found) < ANCESTORS:
            found.append(parent_pid)
            parent = stat(self._path, parent_pid)
            parent_pid = 0 if parent is None else parent.parent_pid
        return tuple(found)

    def _environment(self, pid: int) -> dict[str, str] | None:
        block = self._bytes(pid, "environ")
        return None if block is None else environment(block)

    def _has_own_hostname(self, pid: int) -> bool | None:
        try:
            own, of_node = (os.readlink(self._path / str(p) / "ns" / "uts") for p in (pid, 1))
        except OSError:
            return None
        return own != of_node

    def _text(self, pid: int | str, name: str) -> str:
        return (self._bytes(pid, name) or b"").decode(errors="replace")

    def _bytes(self, pid: int | str, name: str) -> bytes | None:
        return beginning(self._path / str(pid) / name, FILE_BYTES)


def environment(block: bytes) -> dict[str, str]:
    """Return the KEPT_VARIABLES of an environment, which any user may have filled with anything.

    A value that no label can hold is left out.
    """
    kept: dict[str, str] = {}
    for entry in block.split(b"\0"):
        name, _, value = entry.partition(b"=")
        text = _label_text(value) if name.decode(errors="replace") in KEPT_VARIABLES else None
        if text is not None:
            kept.setdefault(name.decode(), text)  # The first one counts, as in getenv().
    return kept


def _label_text(value: bytes) -> str | None:
    try:
        text = value.decode().strip()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() and len(text) <= VALUE_CHARACTERS else None


def as_label(text: str) -> str:
    """Return *text* cut to the length of the longest label."""
    return text if len(text) <= LABEL_CHARACTERS else text[: LABEL_CHARACTERS - 1] + "…"


def _last_number(words: list[str]) -> int | None:
    return int(words[-1]) if words and words[-1].isdecimal() else None
