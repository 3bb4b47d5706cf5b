"""Tests of the process group: when it is made, where a rank sits in it, the store for the join."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.torch_version import TorchVersion

from rank_probe.guest.guard import failures
from rank_probe.process.lifecycle import Lifecycle
from rank_probe.torch_hooks import rendezvous
from rank_probe.torch_hooks.mesh import Coordinates, coordinates_in
from rank_probe.torch_hooks.store import obstacle, opener
from rank_probe.wire.no_join import FAKE_BACKEND, FILE_STORE, HASH_STORE, MPI_BACKEND, OTHER_STORE

ORIGINAL = dist.init_process_group


class Groups:
    """Records each call and whether a group existed then; every call raises."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bool]] = []
        self.while_ranks_meet, self.formed, self.gone = map(self._tells, ("meet", "formed", "gone"))

    def _tells(self, what: str) -> Callable[[], object]:
        def tell() -> None:
            self.told.append((what, dist.is_initialized()))
            raise ValueError

        return tell


def test_groups_are_seen_whoever_makes_them() -> None:
    """The call is timed under either name; what is done meanwhile begins first and never raises.

    Groups made by a function that the script imported earlier are seen as well, each once, and so
    is their end.
    """
    life, groups = Lifecycle(), Groups()
    patches = rendezvous.attach(life, groups)
    with pytest.raises(RuntimeError, match="nonsense"):  # The user's error passes.
        dist.init_process_group(init_method="nonsense://", rank=0, world_size=1)
    assert life.spans["rendezvous"][1] is None
    for make in (distributed_c10d.init_process_group, ORIGINAL):
        make("gloo", store=HashStore(), rank=0, world_size=1)
        dist.new_group([0])
        dist.destroy_process_group()
    patches.undo()

    meets, is_seen = ("meet", False), [("formed", True), ("gone", False)]
    assert groups.told == [meets, meets, *is_seen, *is_seen]
    assert None not in (*life.spans["init"], *life.spans["rendezvous"])


SOON: Final = timedelta(seconds=10)


def serve(_: object = None) -> TCPStore:
    """Return a store that others reach."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def default(monkeypatch: pytest.MonkeyPatch) -> list[Store]:
    """The store of the process group, to be put here."""
    stores: list[Store] = []
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: stores[0])
    return stores


@pytest.mark.skipif(not hasattr(TCPStore, "clone"), reason="torch before 2.8 copies no prefixes")
def test_connection_is_another_one_with_its_own_keys(default: list[Store]) -> None:
    """Keys lie below the prefixes that hold jobs on one store apart.

    The attempt is not in them: torchrun may count it differently on each node. The server ends with
    its group: one that is made anew on the same port must not meet the old one's keys.
    """
    server = serve()
    default.append(PrefixStore("job", PrefixStore("attempt", server)))
    own = opener("night", {})()
    own.set("steps/0", b"\x00\xff")

    server.wait(["attempt/job/rankskew/steps/0"], SOON)
    assert own.multi_get(["steps/0"]) == [b"\x00\xff"]
    assert own.delete_key("steps/0")
    default.clear()
    del server
    with pytest.raises(RuntimeError):
        own.check(["steps/0"])


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
    default: list[Store],
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    environment: dict[str, str],
    prefix: str,
) -> None:
    """This torch hides its prefixes, so the probe's own prefix separates jobs and attempts."""
    server = serve()
    client = OldStore("127.0.0.1", server.port, wait_for_workers=False)
    default.append(OldPrefixStore("job", client))
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    own = opener("night/4", environment)()
    own.set("steps/0", b"x")

    server.wait([f"{prefix}steps/0"], SOON)
    assert own.underlying_store is not client


@pytest.mark.parametrize(
    ("store", "backend", "why"),
    [
        (lambda folder: FileStore(str(folder / "f"), 1), "gloo", FILE_STORE),
        (lambda _: HashStore(), "gloo", HASH_STORE),
        (lambda _: Store(), "mpi", MPI_BACKEND),
        (lambda _: Store(), "gloo", OTHER_STORE),
        (serve, "gloo", ""),
    ],
)
def test_store_that_cannot_serve_the_join_says_why(
    default: list[Store],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store: Callable[[Path], Store],
    backend: str,
    why: str,
) -> None:
    """Only a TCPStore can: a file keeps all that was written, and others are of one process."""
    default.append(PrefixStore("job", store(tmp_path)))
    monkeypatch.setattr(distributed_c10d, "get_backend", lambda: backend)

    assert obstacle() == why


def test_place_of_a_rank_is_what_meshes_and_stages_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 5 of a pp x dp x tp mesh of 2 x 2 x 2 is in place 1, 0, 1; its slices change nothing.

    An unnamed dimension, or a mesh without this rank, gives no coordinate. An error while the probe
    reads a mesh does not reach its constructor. A pipeline stage needs no mesh.
    """
    from torch.distributed.pipelining import PipelineStage

    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
    ranks, found = torch.arange(8), list[dict[str, str]]()

    def observed(make: Callable[[], object]) -> None:
        coordinates = Coordinates()
        patches = coordinates.attach()
        make()
        patches.undo()
        found.append(coordinates.found)

    cube = ranks.view(2, 2, 2)
    observed(lambda: DeviceMesh("cpu", cube, mesh_dim_names=("pp", "dp", "tp"))["dp"])
    observed(lambda: DeviceMesh("cpu", ranks))
    observed(lambda: DeviceMesh("cpu", [0, 1], mesh_dim_names=("tp",)))
    example = torch.ones(1, 2)  # torch 2.4 does not find its shape out by itself.
    cpu = torch.device("cpu")
    observed(lambda: PipelineStage(nn.Linear(2, 2), 5, 8, cpu, input_args=example))
    before = failures.count
    monkeypatch.setattr(DeviceMesh, "get_coordinate", lambda _: 1 / 0)
    observed(lambda: DeviceMesh("cpu", ranks, mesh_dim_names=("dp",)))
    why = obstacle()
    dist.destroy_process_group()

    assert found == [{"pp": "1", "dp": "0", "tp": "1"}, {}, {}, {"pp": "5"}, {}]
    assert (before, failures.count) == (0, 1)
    assert why == FAKE_BACKEND  # Its ranks do not meet.


@pytest.mark.parametrize(
    ("dimensions", "expected"),
    [
        ([("dp_replicate", 1, 2), ("dp_shard", 3, 4)], {"dp": "7"}),
        ([("FSDP", 2, 4), ("Tensor", 1, 2)], {"dp": "2", "tp": "1"}),
        ([("pipeline", 0, 2), ("model", 1, 2)], {"pp": "0", "tp": "1"}),
        ([("cp", 1, 2), ("ep", 1, 2)], {}),
    ],
)
def test_dimensions_go_by_many_names(
    dimensions: list[tuple[str, int, int]], expected: dict[str, str]
) -> None:
    """Each library's name is known, in any case; two data parallel dimensions are one."""
    assert coordinates_in(dimensions) == expected


def test_groups_of_megatron_are_coordinates() -> None:
    """Megatron's groups give coordinates without a mesh; an unused parallelism gives none."""
    places = {"pipeline_model_parallel": (1, 2), "tensor_model_parallel": (0, 1)}
    asked = {
        f"get_{group}_{what}": lambda at=at: at
        for group, place in (places | {"data_parallel": (3, 4)}).items()
        for what, at in zip(("rank", "world_size"), place, strict=True)
    }
    coordinates = Coordinates()
    coordinates._see_megatron(SimpleNamespace(**asked))

    assert coordinates.found == {"pp": "1", "dp": "3"}
