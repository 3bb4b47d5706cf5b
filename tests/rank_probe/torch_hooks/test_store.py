"""The join has a connection of its own to the job's store, and keys of its own in it."""

from typing import Final

import pytest
import torch
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore
from torch.distributed import distributed_c10d
from torch.torch_version import TorchVersion

from rank_probe.torch_hooks.store import opener


@pytest.fixture
def server() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_connection_is_another_one_with_its_own_keys(
    server: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys lie below the prefixes that hold jobs on one store apart.

    The attempt is not in them: torchrun may count it differently on each node.
    """
    default = PrefixStore("job", PrefixStore("attempt", server))
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: default)
    connect = opener("night", {})
    assert connect is not None
    own = connect()
    own.set("steps/0", b"\x00\xff")

    (key,) = (key for key in server.list_keys() if "rankskew" in key)
    assert [part for part in key.split("/") if part] == [
        "attempt",
        "job",
        "rankskew",
        "steps",
        "0",
    ]
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
    assert connect is not None
    own = connect()
    own.set("steps/0", b"x")

    (key,) = (key for key in server.list_keys() if "rankskew" in key)
    assert key.lstrip("/") == f"{prefix}steps/0"
    assert own.underlying_store is not client


def test_server_ends_with_its_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that is made anew on the same port must not meet the old one's keys."""
    default = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: default[0])
    connect = opener("night", {})
    assert connect is not None
    own = connect()
    default.clear()

    with pytest.raises(RuntimeError):
        own.check(["steps/0"])


def test_store_of_another_kind_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or a dictionary serves no join."""
    default = PrefixStore("job", HashStore())
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: default)

    assert opener("night", {}) is None
