"""Our own connection to the store through which the ranks of a job found each other."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import torch
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import distributed_c10d
from torch.torch_version import TorchVersion

__all__ = ["PrefixStore", "TCPStore", "opener"]  # torch itself names the classes in private only

# For a key that was there a moment ago. Not shorter: a call that returns while the interpreter ends
# aborts the process, and a wait of this length at the end of a job never returns.
TIMEOUT: Final = timedelta(seconds=30)


def opener(name: str, environment: Mapping[str, str]) -> Callable[[], Any] | None:
    """Return a function that connects to the default process group's store, with our own keys.

    Call it once, in a thread of its own: it blocks until the store answers, and raises RuntimeError
    if the store cannot be reached. The result is None if the store is no TCPStore: a FileStore
    keeps every value ever written. The process group's connection is not used, because it serves
    one caller at a time. Where torch cannot copy the prefixes that separate jobs on one store, the
    group's *name* and the attempt in the launcher's *environment* do.
    """
    # Dropped by the call: rank 0's store is also the server, and ends with its process group.
    default: list[Any] = [distributed_c10d._get_default_store()]
    if not isinstance(_without_prefixes(default[0]), TCPStore):
        return None
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
    """Whether this torch has `clone`, since 2.8; an older one does not tell prefixes either."""
    return getattr(store, "clone", None) is not None


def _attempt(environment: Mapping[str, str]) -> str:
    """Return the attempt if torch separates attempts by prefix: before 2.6, in torchrun's store.

    Otherwise the store is a new one, and torchrun may count attempts differently on each node.
    """
    is_shared = environment.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    is_old = TorchVersion(torch.__version__) < "2.6"
    return environment.get("TORCHELASTIC_RESTART_COUNT", "") if is_shared and is_old else ""
