from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.nvml.readings.gpm import METRICS, PCIE, Gpm
from exporter.nvml.readings.pcie_link import LINK_SECONDS, PcieLink
from exporter.nvml.readings.pcie_traffic import FIELDS, PcieThroughput
from exporter.nvml.sample import GpuSample, NodeSample
from exporter.nvml.timing import Timing
from tests.exporter.nvml.driver import Driver, Fails
from tests.exporter.nvml.stub import PATIENT, Scenario, Supervise, wait_for_sample

TIMING = Timing(window_seconds=3.0)
BLOCKING = "nvmlDeviceGetPcieThroughput"
MIB = 2**20


def gpm(*told: tuple[float, float]) -> dict[str, Any]:
    """Answers of a GPU whose GPM tells MiB sent and received, the last for ever."""
    return {
        "gpm_support": True,
        "gpm_memory": object,
        "gpm_sample": "a sample",
        "gpm_metrics": _each(*(dict(zip(PCIE, rates, strict=True)) for rates in told)),
    }


def byte_counters(transmit: int, receive: int) -> dict[str, Any]:
    """Answers of a GPU that counts so many bytes in each reading, in more than 32 bits."""
    totals = (
        dict(zip(FIELDS, (2**40 + n * transmit, 2**40 + n * receive), strict=True)) for n in count()
    )
    return {"field_values": lambda *_: next(totals)}


def blocking(*told: tuple[float, float]) -> dict[str, Any]:
    """Answers of a GPU on which the call that blocks tells KB, the last for ever."""
    of_direction = [_each(*rates) for rates in zip(*told, strict=True)]
    return {BLOCKING: lambda _, direction: of_direction[direction]()}


def _each(*answers: Any) -> Any:
    def forever() -> Iterator[Any]:
        yield from answers
        while True:
            yield answers[-1]

    iterator = forever()
    return lambda *_: next(iterator)


class Link:
    """Reads GPM and PCIe of one GPU each second, as the slow job does."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.ask = driver.opened()
        self.now = 100.0
        self._gpm = Gpm(TIMING.window_seconds)
        self._pcie = PcieThroughput(TIMING, self._gpm)

    def read(self) -> dict[str, Any]:
        self.now += 1.0
        self._gpm.read(self.ask, self.now)
        return self._pcie.read(self.ask, self.now)


def told(transmit: float, receive: float, source: str) -> dict[str, Any]:
    return {
        "pcie_transmit_bytes_per_second": transmit,
        "pcie_receive_bytes_per_second": receive,
        "pcie_source": source,
    }


def test_gpu_that_tells_nothing_has_no_throughput_and_is_asked_once() -> None:
    """A virtual GPU has no source: there is no reading, and nothing waits for one."""
    link = Link(Driver())

    assert [link.read() for _ in range(3)] == [{}] * 3
    assert set(link.driver.asked.values()) == {1}


def test_gpm_is_the_first_choice() -> None:
    """If GPM works, its MiB are used, and neither counters nor the blocking call are read."""
    driver = Driver(**gpm((1, 2)), **byte_counters(3, 4), **blocking((5, 6)))
    link = Link(driver)

    assert [link.read() for _ in range(3)] == [{}, *[told(MIB, 2 * MIB, "gpm")] * 2]
    assert not {BLOCKING, "field_values"} & driver.asked.keys()


def test_byte_counters_are_the_second_choice() -> None:
    """Without GPM the growth of the counters is used, and the blocking call is not made."""
    driver = Driver(**byte_counters(3, 4), **blocking((5, 6)))
    link = Link(driver)

    assert [link.read() for _ in range(3)] == [{}, *[told(3, 4, "byte_counter")] * 2]
    assert BLOCKING not in driver.asked


def test_call_that_blocks_is_the_last_choice() -> None:
    """If nothing else works, the blocking call's KB are used, of 1000 bytes each."""
    link = Link(Driver(**blocking((5, 6))))

    assert link.read() == told(5000, 6000, "sampled")


def test_gpm_without_pcie_is_no_source() -> None:
    """Where GPM refuses these metrics, as on a part of a GPU, the next source serves."""
    answers = gpm((1, 2)) | {"gpm_metrics": dict.fromkeys(METRICS[:4], 50.0)}
    link = Link(Driver(**answers, **blocking((5, 6))))
    link.read()

    assert link.read() == told(5000, 6000, "sampled")


def test_failure_that_passes_does_not_change_the_source() -> None:
    """A timeout of GPM is no reading once, and no call that blocks."""
    driver = Driver(**gpm((1, 2)), **blocking((5, 6)))
    link = Link(driver)
    link.read()
    link.read()
    driver.answers["gpm_sample"] = Fails(pynvml.NVML_ERROR_TIMEOUT)
    failed = link.read()
    driver.answers["gpm_sample"] = "a sample"

    assert failed == {}
    assert link.read()["pcie_source"] == "gpm"
    assert BLOCKING not in driver.asked


def test_source_that_the_driver_takes_away_is_replaced() -> None:
    """When GPM is refused from now on, as once MIG is switched on, the next source serves."""
    driver = Driver(**gpm((1, 2)), **blocking((5, 6)))
    link = Link(driver)
    link.read()
    assert link.read()["pcie_source"] == "gpm"
    driver.answers["gpm_sample"] = Fails()

    assert link.read() == told(5000, 6000, "sampled")


def test_throughput_is_the_mean_over_the_window() -> None:
    """Bursts and rests are told by their mean, and what is older than the window is forgotten.

    After the first reading the two directions take turns, each telling its last meanwhile.
    """
    link = Link(Driver(**blocking((90, 9), (30, 3), (60, 6), (0, 0))))
    readings = [link.read() for _ in range(4)]

    assert [r["pcie_transmit_bytes_per_second"] for r in readings] == [90e3, 90e3, 70e3, 50e3]
    assert readings[3]["pcie_receive_bytes_per_second"] == 4000


def test_source_that_is_stuck_at_nothing_is_not_believed() -> None:
    """If GPM and counters stand still, the blocking call is used, because it shows traffic."""
    link = Link(Driver(**gpm((0, 0)), **byte_counters(0, 0), **blocking((5, 6))))
    for _ in range(4):
        reading = link.read()

    assert reading == told(5000, 6000, "sampled")


def test_idle_link_has_no_throughput_by_its_best_source() -> None:
    """When all sources say 0 it is 0."""
    link = Link(Driver(**gpm((0, 0)), **blocking((0, 0))))
    link.read()

    assert link.read() == told(0, 0, "gpm")


def test_source_that_has_told_of_traffic_is_believed_when_it_rests() -> None:
    """Once GPM has counted a byte its 0 is 0, and the call that blocks is made no more."""
    driver = Driver(**gpm((0, 0), (3, 3), (0, 0)), **blocking((5, 6)))
    link = Link(driver)
    sources = [link.read().get("pcie_source") for _ in range(2)]
    asked = driver.asked[BLOCKING]
    resting = [link.read() for _ in range(5)][-1]

    assert sources == [None, "sampled"]
    assert resting == told(0, 0, "gpm")
    assert driver.asked[BLOCKING] == asked


def test_gpu_that_is_opened_again_begins_anew() -> None:
    """After a reset no old rate is in the mean."""
    driver = Driver(**blocking((90, 9), (30, 3)))
    link = Link(driver)
    link.read()
    link.ask = driver.opened()

    assert link.read() == told(30_000, 3000, "sampled")


def a_gpu_at_work(**changes: Any) -> Driver:
    answers = {
        "nvmlDeviceGetPerformanceState": 0,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97),
        "nvmlDeviceGetCurrPcieLinkGeneration": 4,
    }
    return Driver(**answers | changes)


NO_UTILIZATION = {"nvmlDeviceGetUtilizationRates": Fails()}
RESTING = SimpleNamespace(gpu=0)


@pytest.mark.parametrize(
    ("changes", "generation"),
    [
        ({"nvmlDeviceGetCurrPcieLinkGeneration": Fails()}, None),
        ({}, 4),
        ({"nvmlDeviceGetUtilizationRates": RESTING}, None),
        ({"nvmlDeviceGetPerformanceState": 8}, None),  # A screen's few percent at rest.
        ({"nvmlDeviceGetPerformanceState": 2}, 4),  # CUDA on cards with a screen.
        ({"nvmlDeviceGetPerformanceState": 32}, 4),  # Unknown.
        ({"nvmlDeviceGetPerformanceState": Fails()}, 4),
        (NO_UTILIZATION, None),
        ({**NO_UTILIZATION, "nvmlDeviceGetCurrentClocksEventReasons": 0x1}, None),
        ({**NO_UTILIZATION, "nvmlDeviceGetCurrentClocksEventReasons": 0x4}, 4),
    ],
)
def test_generation_is_told_of_a_gpu_at_work_only(
    changes: dict[str, Any], generation: int | None
) -> None:
    """An idle GPU's link slows down to save power: not a degraded link, and no series."""
    ask = a_gpu_at_work(**changes).opened()

    assert PcieLink(15.0).read(ask, 1.0) == {"pcie_link_generation": generation}


def test_link_of_a_gpu_at_work_is_looked_at_every_few_seconds() -> None:
    """A link that was slowed shows after that time, and a timeout costs one reading."""
    driver, link = a_gpu_at_work(), PcieLink(15.0)
    ask = driver.opened()
    link.read(ask, 1.0)
    driver.answers["nvmlDeviceGetCurrPcieLinkGeneration"] = 3
    assert link.read(ask, LINK_SECONDS) == {"pcie_link_generation": 4}
    assert link.read(ask, LINK_SECONDS + 1.0) == {"pcie_link_generation": 3}

    driver.answers["nvmlDeviceGetCurrPcieLinkGeneration"] = Fails(pynvml.NVML_ERROR_TIMEOUT)
    assert link.read(ask, 2 * LINK_SECONDS + 1.0) == {"pcie_link_generation": None}
    driver.answers["nvmlDeviceGetCurrPcieLinkGeneration"] = 4
    assert link.read(ask, 2 * LINK_SECONDS + 2.0) == {"pcie_link_generation": 4}


def test_gpu_at_rest_is_looked_at_each_time() -> None:
    """Work that lasts a second is seen, whenever it comes."""
    driver, link = a_gpu_at_work(nvmlDeviceGetUtilizationRates=RESTING), PcieLink(15.0)
    ask = driver.opened()
    assert [link.read(ask, now)["pcie_link_generation"] for now in (1.0, 2.0)] == [None] * 2
    driver.answers["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=5)

    assert link.read(ask, 3.0) == {"pcie_link_generation": 4}


def test_generation_stays_while_the_gpu_pauses() -> None:
    """Between two steps the series is not gone; after a window of rest it is."""
    driver, link = a_gpu_at_work(), PcieLink(15.0)
    ask = driver.opened()
    link.read(ask, 1.0)
    driver.answers["nvmlDeviceGetUtilizationRates"] = RESTING
    driver.answers["nvmlDeviceGetCurrPcieLinkGeneration"] = 1

    assert link.read(ask, 16.0) == {"pcie_link_generation": 4}
    assert link.read(ask, 17.0) == {"pcie_link_generation": None}


def test_each_source_takes_over_where_the_driver_refuses_the_one_before(
    supervise: Supervise, scenario: Scenario
) -> None:
    """Through the real bindings: GPM, then the counters, then 20 ms a direction in a thread."""
    supervisor = supervise(replace(PATIENT, window_seconds=1.0))  # GPM is asked thrice in that.

    def reads(source: str, transmit: float) -> GpuSample:
        about = pytest.approx(transmit, rel=0.2)  # A pause of the machine upsets the first rates.

        def is_it(sample: NodeSample) -> bool:
            return any(
                gpu.pcie_source == source and gpu.pcie_transmit_bytes_per_second == about
                for gpu in sample.gpus[:1]
            )

        return wait_for_sample(supervisor, is_it).gpus[0]

    by_gpm = reads("gpm", 512 * MIB)
    scenario.play("nvmlGpmSampleGet * 3")
    by_counters = reads("byte_counter", 1e6)
    scenario.play("nvmlGpmSampleGet * 3", "field_197 * 3")
    sampled = reads("sampled", 1e6)

    assert by_gpm.pcie_transmit_bytes_per_second == 512 * MIB
    assert by_gpm.pcie_receive_bytes_per_second == 1024 * MIB
    assert by_gpm.sm_active_percent == 80
    assert by_counters.sm_active_percent is None
    assert sampled.pcie_transmit_bytes_per_second == 1e6
    assert sampled.pcie_receive_bytes_per_second == 2e6


def test_counters_of_32_bits_that_wrap_are_never_taken_for_a_rate(
    supervise: Supervise, scenario: Scenario
) -> None:
    """On a fast link such a counter is not used, but the blocking call."""
    scenario.play("nvmlGpmQueryDeviceSupport * 3", "field_197 * =4294967000", "field_198 * =9")
    supervisor = supervise(PATIENT)
    rates = set()

    def is_sampled_after_a_wrap(sample: NodeSample) -> bool:
        found = [gpu.pcie_transmit_bytes_per_second for gpu in sample.gpus if gpu.pcie_source]
        rates.update(found)
        if len(rates) == 1:
            scenario.play("nvmlGpmQueryDeviceSupport * 3", "field_197 * =500", "field_198 * =9")
        return sample.timestamp_seconds > begun + 0.5 and bool(found)

    begun = wait_for_sample(supervisor, lambda sample: bool(sample.gpus)).timestamp_seconds
    wait_for_sample(supervisor, is_sampled_after_a_wrap)

    assert rates == {1e6}
