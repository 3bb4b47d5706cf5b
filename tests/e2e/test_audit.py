"""`rank-probe audit` under a real torchrun: four ranks, what is planted, and nothing else."""

from pathlib import Path

import pytest

from tests import nvmlstub
from tests.e2e.audit_launch import PLANTS, launch, troubles

pytestmark = pytest.mark.e2e


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
    document = launch(tmp_path, library, PLANTS)
    found = troubles(document)

    assert document["ok"] is False
    assert set(found) == {plant.check for plant in PLANTS}
    for plant in PLANTS:
        assert plant.said in found[plant.check]["reason"]
