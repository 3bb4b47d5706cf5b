"""A connection of our own to the store through which the ranks of a job found each other."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import distributed_c10d

# Of a key that was there a moment ago. Not shorter: a call that comes back while the interpreter
# ends aborts the process, and what waits this long at the end of a job never comes back.
TIMEOUT: Final = timedelta(seconds=30)


def opener() -> Callable[[], Any] | None:
    """Return what connects to the default process group's store, with keys of our own.

    It is called once: it blocks until the store answers, so it is for a thread of its own; it
    raises RuntimeError where the store cannot be reached. None where the store is no TCPStore: a
    FileStore keeps every value that was ever written. The connection of the process group is not
    used, since it serves one caller at a time.
    """
    # Taken out by the call: rank 0's is the server too, and ends with its process group.
    default = [distributed_c10d._get_default_store()]
    if not _can_be_reached_anew(default[0]):
        return None

    def connect() -> Any:
        own = PrefixStore("rankskew", _another(default.pop()))
        own.set_timeout(TIMEOUT)
        return own

    return connect


def _can_be_reached_anew(store: Any) -> bool:
    """Whether it is a TCPStore, with prefixes that can be had again: they hold jobs apart."""
    if isinstance(store, PrefixStore):
        return _can_clone(store) and _can_be_reached_anew(store.underlying_store)
    return isinstance(store, TCPStore)


def _another(store: Any) -> Any:
    if _can_clone(store):
        return store.clone()
    return TCPStore(store.host, store.port, wait_for_workers=False)


def _can_clone(store: Any) -> bool:
    """Whether this torch has `clone`; an older one does not tell a store's prefix either."""
    return getattr(store, "clone", None) is not None
