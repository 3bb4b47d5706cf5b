"""Our own connection to the store through which the ranks of a job found each other."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import distributed_c10d

__all__ = ["PrefixStore", "TCPStore", "opener"]  # torch itself names the classes in private only

# For a key that was there a moment ago. Not shorter: a call that returns while the interpreter ends
# aborts the process, and a wait of this length at the end of a job never returns.
TIMEOUT: Final = timedelta(seconds=30)


def opener() -> Callable[[], Any] | None:
    """Return a function that connects to the default process group's store, with our own keys.

    Call it once, in a thread of its own: it blocks until the store answers, and raises RuntimeError
    if the store cannot be reached. The result is None if the store is no TCPStore: a FileStore
    keeps every value ever written. The process group's connection is not used, because it serves
    one caller at a time.
    """
    # Dropped by the call: rank 0's store is also the server, and ends with its process group.
    default = [distributed_c10d._get_default_store()]
    if not _can_be_reached_anew(default[0]):
        return None

    def connect() -> Any:
        own = PrefixStore("rankskew", _another(default.pop()))
        own.set_timeout(TIMEOUT)
        return own

    return connect


def _can_be_reached_anew(store: Any) -> bool:
    """Whether it is a TCPStore with prefixes that can be reused: they separate jobs."""
    if isinstance(store, PrefixStore):
        return _can_clone(store) and _can_be_reached_anew(store.underlying_store)
    return isinstance(store, TCPStore)


def _another(store: Any) -> Any:
    if _can_clone(store):
        return store.clone()
    return TCPStore(store.host, store.port, wait_for_workers=False)


def _can_clone(store: Any) -> bool:
    """Whether this torch has `clone`; an older one does not expose a store's prefix either."""
    return getattr(store, "clone", None) is not None
