"""Fixtures for several tests of the probe."""

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rank_probe.process import runtime
from rank_probe.torch_hooks import cuda_events, process_group, store
from tests import nvmlstub
from tests.rank_probe.fakes import FakeDevice, StubEvents
from tests.rank_probe.join.memory_world import MemoryStore

# As the probe does for its own work: a second thread of torch's pool spins until it is used.
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def peers() -> Iterator[None]:
    """Make the probe cut each backward, as in a job of several ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_group, "has_peers", lambda: True)
        yield


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub of libnvidia-ml.so.1, compiled once."""
    return nvmlstub.build(tmp_path_factory.mktemp("nvmlstub"))


@pytest.fixture(scope="session")
def cudart(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The stub of the CUDA runtime, compiled once."""
    library = tmp_path_factory.mktemp("cudart") / "stub.so"
    source = Path(__file__).with_name("cudart_stub.c")
    subprocess.run(["gcc", "-O1", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture
def joinable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2 of a process group of 4, on a store of its own."""
    monkeypatch.setattr(process_group, "rank_and_world_size", lambda: (2, 4))
    monkeypatch.setattr(store, "obstacle", str)
    monkeypatch.setattr(store, "opener", lambda *_: MemoryStore)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, cudart: ctypes.CDLL) -> FakeDevice:
    """CUDA in use, on a simulated device."""
    events = StubEvents(cudart, in_python=False)
    memory = {"allocated_bytes": {"all": {"current": 1}}, "num_alloc_retries": 4}
    monkeypatch.setattr(runtime, "cuda_device", lambda _: 1)
    monkeypatch.setattr(runtime, "_properties", lambda _: SimpleNamespace(uuid="1", name="H100"))
    monkeypatch.setattr(cuda_events, "CudaEvents", lambda _: events)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda _: memory)
    return events.streams
