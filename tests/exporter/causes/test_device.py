"""Slow GPUs, and GPUs that somebody else uses."""

import pytest

from tests.exporter.causes.planted import found, named

ON_GPU = {"forward": 0.1, "backward": 0.2}
FOREIGN = "python, PID 31337 of alice"


@pytest.mark.parametrize(
    ("detail", "changes", "says"),
    [
        (
            "clocks",
            {"sm_clock_hertz": 1.41e9, "gpu_temperature_celsius": 87.0},
            "its SM clock is 1.41 GHz, its peers' 1.96: too hot, 87 °C",
        ),
        (
            "pstate",
            {"memory_clock_hertz": 1.593e9},
            "its GPU's memory clock is 1.59 GHz, its peers' 2.63 (performance state P2)",
        ),
        (
            "memory",
            {"gpu_memory_faults": 2.0},
            "its GPU's count of memory faults is 2, its peers' 0",
        ),
        (
            "pcie_link",
            {"pcie_link_bytes_per_second": 15.8e9},
            "its GPU's PCIe link runs at 15.8 GB/s, its peers' at 63.3",
        ),
        (
            "pcie_errors",
            {"pcie_errors_per_second": 30.0},
            "its GPU's PCIe link has an error rate of 30 a second, its peers' 0",
        ),
        (
            "nvlink",
            {"nvlink_links_up": 17.0},
            "its GPU has 17 NVLinks up, its peers' 18",
        ),
        (
            "nvlink_errors",
            {"nvlink_errors_per_second": 12.0},
            "its GPU's NVLinks have an error rate of 12 a second, its peers' 0",
        ),
    ],
)
def test_slow_gpu_is_found(detail: str, changes: dict[str, float], says: str) -> None:
    """By its clocks, or by a fault that its peers' GPUs do not have."""
    facts = {"sm_clock_hertz": "too hot", "memory_clock_hertz": "P2"}
    cause = found(ON_GPU, changes, facts=facts)

    assert named(cause) == ("slow_device", detail)
    assert cause.sentence == says
    assert cause.share > 0.9


def test_foreign_process_is_found() -> None:
    """And whose it is."""
    facts = {"gpu_foreign_processes": FOREIGN}
    cause = found(ON_GPU, {"gpu_foreign_processes": 1.0}, facts=facts)

    assert named(cause) == ("foreign_process", "")
    assert (
        cause.sentence == f"it shares its GPU with 1 foreign process ({FOREIGN}), its peers with 0"
    )
    assert (cause.figure, cause.value, cause.peers_value) == ("gpu_foreign_processes", 1.0, 0.0)


def test_process_that_all_share_is_nobodys_cause() -> None:
    """A monitor runs on each GPU."""
    usual = {"gpu_foreign_processes": 1.0}

    assert found(ON_GPU, {"gpu_foreign_processes": 1.0}, usual=usual).cause == "unknown"


def test_gpu_does_not_delay_batches() -> None:
    """What is wrong with it is no reason to be late in another stage."""
    wrong = {"sm_clock_hertz": 1.41e9, "gpu_foreign_processes": 1.0, "pcie_errors_per_second": 30.0}

    assert found({"data": 0.3}, wrong).cause == "unknown"


def test_gpu_does_not_delay_a_thread_that_sleeps() -> None:
    """Though it is late on the GPU."""
    states = [("forward", "sleep", 1.0, "f (a.py:1)"), ("backward", "sleep", 1.0, "f (a.py:1)")]
    cause = found(ON_GPU, {"gpu_foreign_processes": 1.0}, states=states)

    assert named(cause) == ("code", "sleep")


def test_clock_that_explains_little_is_a_guess() -> None:
    """5 % of the clock are no third of its time."""
    cause = found(ON_GPU, {"sm_clock_hertz": 1.85e9})

    assert cause.cause == "unknown"
    assert [(each.cause, each.detail) for each in cause.others] == [("slow_device", "clocks")]
    assert 0.1 < cause.others[0].share < 0.25


def test_foreign_process_that_lowers_no_clock_is_told_before_a_small_difference() -> None:
    """A measured amount has to account for half to be told first."""
    changes = {"sm_clock_hertz": 1.85e9, "gpu_foreign_processes": 1.0}

    assert found(ON_GPU, changes).cause == "foreign_process"
    changes["sm_clock_hertz"] = 1.41e9
    assert named(found(ON_GPU, changes)) == ("slow_device", "clocks")


def test_performance_state_is_why_both_clocks_are_low() -> None:
    """A GPU that saves power lowers both."""
    changes = {"sm_clock_hertz": 1.2e9, "memory_clock_hertz": 1.593e9}

    assert named(found(ON_GPU, changes)) == ("slow_device", "pstate")


def test_throttling_counts_where_no_clock_is_read() -> None:
    """A throttled GPU that has the clock of its peers is not slow."""
    changes = {"gpu_throttled_ratio": 0.8}
    cause = found(ON_GPU, changes, usual={"sm_clock_hertz": None})

    assert named(cause) == ("slow_device", "clocks")
    assert cause.sentence == "its GPU is throttled 80 % of the time, its peers' 0.5 %"
    assert found(ON_GPU, changes).cause == "unknown"


def test_clocks_of_no_peers_tell_nothing() -> None:
    """What is the usual clock? Faults can be told: a healthy GPU has none."""
    nobody = dict.fromkeys(("sm_clock_hertz", "gpu_foreign_processes"))

    assert found(ON_GPU, {"sm_clock_hertz": 1.41e9}, usual=nobody).cause == "unknown"
    assert found(ON_GPU, {"gpu_foreign_processes": 1.0}, usual=nobody).cause == "foreign_process"
