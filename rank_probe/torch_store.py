"""A connection of our own to the store through which the ranks of a job found each other."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import distributed_c10d

# Of a key that was there a moment ago. Not shorter: a call that comes back while the interpreter
# ends aborts the process, and what waits this long at the end of a job never comes back.
TIMEOUT: Final = timedelta(seconds=30)


def opener(attempt: int) -> Callable[[], Any] | None:
    """Return what connects to the default process group's store, with keys of our own.

    The call blocks until the store answers, so it is for a thread of its own; it raises
    RuntimeError where the store cannot be reached. None where the store is no TCPStore: a
    FileStore keeps every value that was ever written. The connection of the process group is not
    used, since it serves one caller at a time.
    """
    default = distributed_c10d._get_default_store()
    store: Any = default
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return None
    # Its prefixes hold jobs, and attempts of one, apart; but not every torch can copy them.
    clone = getattr(default, "clone", None)

    def connect() -> Any:
        connected = (
            TCPStore(store.host, store.port, wait_for_workers=False) if clone is None else clone()
        )
        prefixed = PrefixStore(f"rankskew/{attempt}", connected)
        prefixed.set_timeout(TIMEOUT)
        return prefixed

    return connect
