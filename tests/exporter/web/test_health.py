"""Readiness and liveness give their reason, and a restart is requested only if it helps."""

import pytest

from exporter.nvml.sample import GpuSample, NodeSample
from exporter.web.health import GONE_SECONDS, GpusGone, Ready

FINE = NodeSample(1.0, 2, gpus=(GpuSample(0, True), GpuSample(1, True)))
ONE_LOST = NodeSample(1.0, 2, gpus=(GpuSample(0, True), GpuSample(1, False)))
ALL_LOST = NodeSample(1.0, 2, gpus=(GpuSample(0, False), GpuSample(1, False)))
NO_DRIVER = NodeSample(1.0, 0)
STILL_ASKED = NodeSample(1.0)


class FakeNvml:
    def __init__(self, sample: NodeSample | None) -> None:
        self.sample = sample
        self.released = False

    def latest(self) -> NodeSample | None:
        return self.sample


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def test_node_without_nvml_waits_for_the_first_readings_once() -> None:
    """A collector that is added or hangs later does not take the node out."""
    has_readings = False
    ready = Ready(lambda: has_readings, None)

    assert ready() == "The first readings are not available yet."
    has_readings = True
    assert ready() is None
    has_readings = False
    assert ready() is None


@pytest.mark.parametrize("sample", [FINE, ONE_LOST, ALL_LOST, NO_DRIVER])
def test_whatever_the_driver_says_the_exporter_is_ready(sample: NodeSample) -> None:
    """Metrics report a lost GPU or a missing driver, which an unready node could not do."""
    assert Ready(lambda: True, FakeNvml(sample))() is None


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        (None, "The NVML worker does not report: it is starting, or stuck and being replaced."),
        (STILL_ASKED, "The driver has not listed the GPUs yet."),
    ],
)
def test_exporter_is_not_ready_while_it_knows_nothing_of_the_gpus(
    sample: NodeSample | None, why: str
) -> None:
    """A worker that crashed or hangs shows, also long after the start, and its return too."""
    nvml = FakeNvml(FINE)
    ready = Ready(lambda: True, nvml)
    assert ready() is None
    nvml.sample = sample
    assert ready() == why
    nvml.sample = FINE
    assert ready() is None


def test_released_gpus_leave_the_exporter_ready() -> None:
    """The operator knows that they are not read: he asked for it."""
    nvml = FakeNvml(None)
    nvml.released = True

    assert Ready(lambda: True, nvml)() is None


def test_node_without_gpus_is_always_healthy() -> None:
    """Nothing was there, so nothing was lost, whether NVML is asked or not."""
    clock = Clock()
    for gone in (GpusGone(None, clock), GpusGone(FakeNvml(NO_DRIVER), clock)):
        assert gone() is None
        clock.seconds += 2 * GONE_SECONDS
        assert gone() is None


@pytest.mark.parametrize("sample", [ALL_LOST, NO_DRIVER])
def test_gpus_that_are_all_gone_for_long_ask_for_a_restart(sample: NodeSample) -> None:
    """A container that lost its devices is replaced; a short gap restarts nothing."""
    nvml, clock = FakeNvml(FINE), Clock()
    gone = GpusGone(nvml, clock)
    assert gone() is None
    nvml.sample = sample
    assert gone() is None
    clock.seconds += GONE_SECONDS - 1
    assert gone() is None
    clock.seconds += 1

    sentence = "No GPU has answered for 10 minutes, although this process has seen GPUs; "
    assert gone() == sentence + "a restarted container may see them again."
    nvml.sample = FINE
    assert gone() is None


def test_restart_that_did_not_help_is_not_repeated() -> None:
    """A process that never had a GPU stays, or Kubernetes would restart it forever."""
    clock = Clock()
    gone = GpusGone(FakeNvml(ALL_LOST), clock)
    gone()
    clock.seconds += 2 * GONE_SECONDS

    assert gone() is None


@pytest.mark.parametrize("sample", [None, STILL_ASKED, ONE_LOST])
def test_only_all_gpus_that_are_known_to_be_gone_count(sample: NodeSample | None) -> None:
    """A silent worker, a released driver or one lost GPU restart nothing."""
    nvml, clock = FakeNvml(FINE), Clock()
    gone = GpusGone(nvml, clock)
    gone()
    for each in (ALL_LOST, sample, ALL_LOST):
        nvml.sample = each
        assert gone() is None
        clock.seconds += GONE_SECONDS - 1

    assert gone() is None
