"""The stub of NVML, compiled once."""

from pathlib import Path

import pytest

from tests import nvmlstub


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub of libnvidia-ml.so.1."""
    return nvmlstub.build(tmp_path_factory.mktemp("nvmlstub"))
