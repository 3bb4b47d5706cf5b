"""The join has a connection of its own to the job's store, and keys of its own in it."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.torch_version import TorchVersion

from rank_probe.torch_hooks.store import obstacle, opener
from rank_probe.wire.no_join import FAKE_BACKEND, FILE_STORE, HASH_STORE, MPI_BACKEND, OTHER_STORE

SOON: Final = timedelta(seconds=10)


@pytest.fixture
def server() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.mark.skipif(not hasattr(TCPStore, "clone"), reason="torch before 2.8 copies no prefixes")
def test_connection_is_another_one_with_its_own_keys(
    server: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys lie below the prefixes that hold jobs on one store apart.

    The attempt is not in them: torchrun may count it differently on each node.
    """
    default = PrefixStore("job", PrefixStore("attempt", server))
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: default)
    connect = opener("night", {})
    own = connect()
    own.set("steps/0", b"\x00\xff")

    server.wait(["attempt/job/rankskew/steps/0"], SOON)
    assert own.multi_get(["steps/0"]) == [b"\x00\xff"]
    base = own.underlying_store
    while isinstance(base, PrefixStore):
        base = base.underlying_store
    assert base is not server
    assert own.delete_key("steps/0")


class OldStore(TCPStore):
    clone = None


class OldPrefixStore(PrefixStore):
    clone = None


AGENT: Final = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "3"}


@pytest.mark.parametrize(
    ("version", "environment", "prefix"),
    [
        ("2.7.1", AGENT, "rankskew/night/4//"),
        ("2.4.1", AGENT, "rankskew/night/4/3/"),
        ("2.4.1", {"TORCHELASTIC_RESTART_COUNT": "3"}, "rankskew/night/4//"),
    ],
)
def test_torch_without_clone_is_connected_by_address(
    server: TCPStore,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    environment: dict[str, str],
    prefix: str,
) -> None:
    """It does not tell the prefixes that hold jobs and attempts on one store apart: ours do."""
    client = OldStore("127.0.0.1", server.port, wait_for_workers=False)
    default = OldPrefixStore("job", client)
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: default)
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    connect = opener("night/4", environment)
    own = connect()
    own.set("steps/0", b"x")

    server.wait([f"{prefix}steps/0"], SOON)
    assert own.underlying_store is not client


def test_server_ends_with_its_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that is made anew on the same port must not meet the old one's keys."""
    default = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: default[0])
    connect = opener("night", {})
    own = connect()
    default.clear()

    with pytest.raises(RuntimeError):
        own.check(["steps/0"])


@pytest.mark.parametrize(
    ("store", "backend", "why"),
    [
        (lambda folder: FileStore(str(folder / "f"), 1), "gloo", FILE_STORE),
        (lambda _: HashStore(), "gloo", HASH_STORE),
        (lambda _: Store(), "mpi", MPI_BACKEND),
        (lambda _: Store(), "gloo", OTHER_STORE),
        (lambda _: TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), "gloo", ""),
    ],
)
def test_store_that_cannot_serve_the_join_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store: Callable[[Path], Store],
    backend: str,
    why: str,
) -> None:
    """Only a TCPStore can: a file keeps all that was written, and others are of one process."""
    default = PrefixStore("job", store(tmp_path))
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: default)
    monkeypatch.setattr(distributed_c10d, "get_backend", lambda: backend)

    assert obstacle() == why


def test_group_without_ranks_that_meet_says_why() -> None:
    """As torch makes it, and not only as it names its stores."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        assert obstacle() == FAKE_BACKEND
    finally:
        dist.destroy_process_group()
