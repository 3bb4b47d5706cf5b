"""The stub library, compiled once, and supervisors that run on it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from exporter.nvml.supervisor import NvmlSupervisor
from exporter.nvml.timing import Timing
from tests import nvmlstub
from tests.exporter.nvml.drivers import PATIENT, Scenario, Supervise, supervised


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub of libnvidia-ml.so.1."""
    return nvmlstub.build(tmp_path_factory.mktemp("nvmlstub"))


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    """What the stub plays; nothing special at first."""
    return Scenario(tmp_path / "scenario.txt")


@pytest.fixture
def supervise(library: Path, scenario: Scenario) -> Iterator[Supervise]:
    """Start supervisors on the stub; they and their workers end with the test."""
    with ExitStack() as stack:

        def start(
            timing: Timing,
            gpus: int = 2,
            pcie_milliseconds: int = 20,
            restart_seconds: float = 0.1,
            silent_seconds: float = PATIENT.stale_seconds,
            **variables: str,
        ) -> NvmlSupervisor:
            stub = nvmlstub.environment(library, gpus, scenario.path, pcie_milliseconds)
            return stack.enter_context(
                supervised(timing, stub | variables, restart_seconds, silent_seconds)
            )

        yield start
