"""Readiness and liveness give their reason, and a restart is requested only if it helps."""

import pytest

from exporter.nvml.sample import GpuSample, NodeSample
from exporter.web.health import GONE_SECONDS, GpusGone, Ready
from tests.exporter.clock import Clock

FINE = NodeSample(1.0, 2, gpus=(GpuSample(0, True), GpuSample(1, True)))
ONE_LOST = NodeSample(1.0, 2, gpus=(GpuSample(0, True), GpuSample(1, False)))
ALL_LOST = NodeSample(1.0, 2, gpus=(GpuSample(0, False), GpuSample(1, False)))
NO_DRIVER = NodeSample(1.0, 0)
STILL_ASKED = NodeSample(1.0)


class FakeNvml:
    def __init__(self, sample: NodeSample | None, released: bool = False) -> None:
        self.sample = sample
        self.released = released

    def latest(self) -> NodeSample | None:
        return self.sample


def test_node_without_nvml_waits_for_the_first_readings_once() -> None:
    """A collector that is added or hangs later does not take the node out."""
    answers = iter([False, True])
    ready = Ready(lambda: next(answers), None)

    assert ready() == "The first readings are not available yet."
    assert ready() is None
    assert ready() is None


@pytest.mark.parametrize(
    ("sample", "released", "why"),
    [
        (FINE, False, None),
        (ONE_LOST, False, None),
        (ALL_LOST, False, None),
        (NO_DRIVER, False, None),
        (None, True, None),
        (
            None,
            False,
            "The NVML worker does not report: it is starting, or stuck and being replaced.",
        ),
        (STILL_ASKED, False, "The driver has not listed the GPUs yet."),
    ],
)
def test_exporter_is_ready_while_it_knows_of_the_gpus(
    sample: NodeSample | None, released: bool, why: str | None
) -> None:
    """Metrics report a lost GPU, a missing driver or a release, which an unready node could not.

    A worker that crashed or hangs shows, also long after the start, and its return too.
    """
    nvml = FakeNvml(FINE)
    ready = Ready(lambda: True, nvml)
    assert ready() is None
    nvml.sample, nvml.released = sample, released
    assert ready() == why
    nvml.sample = FINE
    assert ready() is None


@pytest.mark.parametrize("nvml", [None, FakeNvml(NO_DRIVER), FakeNvml(ALL_LOST)])
def test_process_that_never_had_a_gpu_is_always_healthy(nvml: FakeNvml | None) -> None:
    """Nothing was lost; where a restart did not help, Kubernetes would restart it forever."""
    clock = Clock()
    gone = GpusGone(nvml, clock)
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
