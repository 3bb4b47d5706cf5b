"""`rank-probe audit` under a real torchrun: four ranks, what is planted, and nothing else."""

from pathlib import Path

import pytest

from tests import nvmlstub
from tests.e2e.audit_launch import PLANTS, launch, troubles

pytestmark = pytest.mark.e2e

# Each changes other ranks or another limit, and none needs root.
PLANTED = {
    "CUDA_DEVICE_ORDER on one rank": "on node-a: unset on rank 0, PCI_BUS_ID on rank 1",
    "NCCL_ALGO on one rank": "NCCL_ALGO is Ring on rank 2; on the others it is unset",
    "one rank on one CPU": "rank 3 on node-b may use 1 CPU, other ranks there ",
    "little lockable memory": "ranks 2-3 may lock 64 KiB of memory (ulimit -l)",
    "another MTU on one node": "the MTU differs: 9000 on node-a; 1500 on node-b",
    "a slow InfiniBand port": "mlx5_1 on node-b (100 Gb/s)",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub of libnvidia-ml.so.1."""
    return nvmlstub.build(tmp_path_factory.mktemp("nvmlstub"))


def test_clean_launch_has_no_trouble(library: Path, tmp_path: Path) -> None:
    """Four ranks compare themselves, and nothing is wrong."""
    document = launch(tmp_path, library, [])

    assert troubles(document) == {}
    assert (document["ok"], document["ranks"], document["missing"]) == (True, 4, [])
    assert document["nodes"] == ["node-a", "node-b"]


def test_each_planted_misconfiguration_is_named(library: Path, tmp_path: Path) -> None:
    """Each with its ranks or node, and nothing beside them."""
    plants = [plant for plant in PLANTS if plant.name in PLANTED]
    document = launch(tmp_path, library, plants)
    found = troubles(document)

    assert len(plants) == len(PLANTED)
    assert document["ok"] is False
    assert set(found) == {plant.check for plant in plants}
    for plant in plants:
        assert PLANTED[plant.name] in found[plant.check]["reason"]
