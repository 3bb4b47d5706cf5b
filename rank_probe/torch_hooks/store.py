"""Our own connection to the store through which the ranks of a job found each other."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import distributed_c10d
from torch.torch_version import TorchVersion

from rank_probe.torch_hooks.private import find
from rank_probe.wire.no_join import FAKE_BACKEND, FILE_STORE, HASH_STORE, MPI_BACKEND, OTHER_STORE

if TYPE_CHECKING:  # Public, but not to a type checker.
    from torch._C._distributed_c10d import PrefixStore, TCPStore
else:
    from torch.distributed import PrefixStore, TCPStore

__all__ = ["PrefixStore", "TCPStore", "obstacle", "opener"]

# For a key that was there a moment ago. Not shorter: a call that returns while the interpreter ends
# aborts the process, and a wait of this length at the end of a job never returns.
TIMEOUT: Final = timedelta(seconds=30)
# By the class of the store, or by the backend if it has none of its own.
OBSTACLES: Final = {
    "FileStore": FILE_STORE,
    "HashStore": HASH_STORE,
    "mpi": MPI_BACKEND,
    "fake": FAKE_BACKEND,
}


def obstacle() -> str:
    """Return why the default process group's store cannot serve the join, empty if it can.

    It must be a TCPStore: a FileStore keeps every value ever written, a HashStore is that of one
    process, and MPI's is empty.
    """
    without = "There is no join: each exporter compares the ranks of its own node."
    get_default = find(distributed_c10d, "_get_default_store", without)
    if get_default is None:
        return OTHER_STORE
    base = _without_prefixes(get_default())
    if isinstance(base, TCPStore):
        return ""
    names = (type(base).__name__, distributed_c10d.get_backend())
    return next((OBSTACLES[name] for name in names if name in OBSTACLES), OTHER_STORE)


def opener(name: str, environment: Mapping[str, str]) -> Callable[[], Any]:
    """Return a function that connects to the default process group's store, with our own keys.

    Call it once, in a thread of its own: it blocks until the store answers, and raises RuntimeError
    if the store cannot be reached. The process group's connection is not used, because it serves
    one caller at a time. Where torch cannot copy the prefixes that separate jobs on one store, the
    group's *name* and the attempt in the launcher's *environment* do.
    """
    # Dropped by the call: rank 0's store is also the server, and ends with its process group.
    default: list[Any] = [distributed_c10d._get_default_store()]
    prefix = f"rankskew/{name}/{_attempt(environment)}"

    def connect() -> Any:
        store = default.pop()
        if _can_clone(store):
            own = PrefixStore("rankskew", store.clone())
        else:
            server = _without_prefixes(store)
            own = PrefixStore(
                prefix, TCPStore(server.host, server.port, is_master=False, wait_for_workers=False)
            )
        own.set_timeout(TIMEOUT)
        return own

    return connect


def _without_prefixes(store: Any) -> Any:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _can_clone(store: Any) -> bool:
    """Whether this torch has `clone` (2.8 and later); older ones do not expose prefixes either."""
    return getattr(store, "clone", None) is not None


def _attempt(environment: Mapping[str, str]) -> str:
    """Return the attempt if torch separates attempts by prefix: before 2.6, in torchrun's store.

    Otherwise the store is a new one, and torchrun may count attempts differently on each node.
    """
    is_shared = environment.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    is_old = TorchVersion(torch.__version__) < "2.6"
    return environment.get("TORCHELASTIC_RESTART_COUNT", "") if is_shared and is_old else ""
