"""What a thread does, in a word: its state, on which storage, and whether it is a worker's."""

import re
from typing import Final

from exporter.causes.model import BLOCKED, CPU_QUEUE, DISK, LOCK, PIPE, RUNNING, ThreadState
from rank_probe.wire.snapshot import OF_THREAD, THREAD_STATES

# Another thread holds the GIL; the place names that thread.
INTERPRETER: Final = "interpreter"
# Kinds of storage, from the file system in `/data (nfs)`.
LOCAL, NFS, LUSTRE, OTHER_MOUNT, NOT_KNOWN = "disk", "nfs", "lustre", "mount", "storage"
STORAGES: Final = (NFS, LUSTRE, OTHER_MOUNT, LOCAL, NOT_KNOWN)
LOCAL_FILE_SYSTEMS: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "vfat"}
)
# A line of code ends in parentheses too: `read (corpus.py:88)`.
_FILE_SYSTEM: Final = re.compile(r"\(([\w.-]+)\)$")


def storage_of(place: str) -> str:
    """Return the kind of storage that *place* names, NOT_KNOWN if it is no mount."""
    found = _FILE_SYSTEM.search(place)
    if found is None:
        return NOT_KNOWN
    kind = found[1].lower()
    if kind.startswith(NFS):
        return NFS
    if kind.startswith(LUSTRE):
        return LUSTRE
    return LOCAL if kind in LOCAL_FILE_SYSTEMS else OTHER_MOUNT


def on(storage: str) -> str:
    """Return the token of a wait for this kind of *storage*."""
    return f"{DISK}_{storage}"


def worker(token: str) -> str:
    """Return *token* as that of a loader's worker for which the main thread waits."""
    return f"worker_{token}"


def token_of(state: ThreadState) -> str:
    """Return the token of a *state* of the main thread."""
    if state.state == LOCK and state.place.startswith(OF_THREAD):
        return INTERPRETER
    return on(storage_of(state.place)) if state.state == DISK else state.state


def both(*tokens: str) -> frozenset[str]:
    """Return *tokens* of the main thread and of a worker; PIPE stands for a worker not seen."""
    return frozenset({*tokens, *map(worker, tokens), PIPE})


_MAIN: Final = (*(state for state in THREAD_STATES if state != DISK), *map(on, STORAGES))
ANY: Final = both(*_MAIN, INTERPRETER)
ON_CPU: Final = both(RUNNING, CPU_QUEUE)
ON_STORAGE: Final = both(*map(on, STORAGES), BLOCKED)
