"""A thread's time on a CPU, waiting for one and blocked, beside that of its peers."""

from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from exporter.causes.cpu_time import more_than_peers, runs_longer
from exporter.causes.model import RUNNING, Evidence, Quantiles, ThreadState
from exporter.causes.work import CODE_ROWS
from tests.exporter.causes.planted import case_in, lateness

# A rank of four on two CPUs, as measured: it works for 98 ms of a step of 103, 19 on a CPU.
PEERS: Final = {
    "step_seconds": 0.1033,
    "data_seconds": 0.0154,
    "forward_seconds": 0.0415,
    "backward_seconds": 0.0310,
    "other_seconds": 0.0102,
    "main_running_ratio": 0.1840,
    "main_run_queue_ratio": 0.0142,
}
# The same rank while four processes want its CPU.
HOGGED: Final = {
    "step_seconds": 0.1633,
    "data_seconds": 0.0152,
    "forward_seconds": 0.0633,
    "backward_seconds": 0.0561,
    "other_seconds": 0.0112,
    "main_running_ratio": 0.1168,
    "main_run_queue_ratio": 0.3392,
}
# It sleeps for 50 ms more, and it computes for as long.
SLEEPS: Final = {
    **PEERS,
    "step_seconds": 0.1533,
    "data_seconds": 0.0654,
    "main_running_ratio": 0.0190 / 0.1533,
    "main_run_queue_ratio": 0.0015 / 0.1533,
}
DECODES: Final = {**SLEEPS, "main_running_ratio": 0.0690 / 0.1533}


def more(
    own: Mapping[str, float], peers: Mapping[str, float], seen: Sequence[ThreadState] = ()
) -> tuple[float, float] | None:
    """Return for how many milliseconds a step a thread runs, and is blocked, beyond its peers'."""
    usual = {name: Quantiles(value, value, value) for name, value in peers.items()}
    found = more_than_peers(case_in(lateness({"data": 0.3}), Evidence(own, seen), usual))
    return None if found is None else (1e3 * found.runs, 1e3 * found.blocked)


@pytest.mark.parametrize(
    ("own", "runs", "blocked"), [(HOGGED, 0.1, 0.0), (SLEEPS, 0.0, 48.5), (DECODES, 50.0, 0.0)]
)
def test_excess_is_what_the_kernel_counts_beyond_its_peers(
    own: Mapping[str, float], runs: float, blocked: float
) -> None:
    """A hogged rank still sleeps for half of its longer stages, but no longer than before.

    The 1.5 ms in which peers wait for a CPU may belong to their wait for other ranks.
    """
    assert more(own, PEERS) == pytest.approx((runs, blocked), abs=0.5)


def test_thread_that_is_seen_to_wait_for_a_cpu_is_not_blocked() -> None:
    """Its times in the kernel are read every few seconds: they may be those of before the hogs."""
    stale = HOGGED | {name: PEERS[name] for name in ("main_running_ratio", "main_run_queue_ratio")}
    states = ("sleep", "cpu_queue", "running")
    shares = {"forward": (0.65, 0.24, 0.11), "backward": (0.45, 0.34, 0.21)}
    seen = [
        ThreadState(stage, *each)
        for stage, found in shares.items()
        for each in zip(states, found, strict=True)
    ]
    blind, found = more(stale, PEERS), more(stale, PEERS, seen)

    assert blind is not None
    assert found is not None
    assert (blind[1], found[1]) == pytest.approx((34.4, 13.8), abs=1.0)


def test_peers_that_run_while_they_wait_for_others_say_nothing() -> None:
    """NCCL spins: 100 ms on a CPU are more than the 98 in which they work."""
    assert more(SLEEPS, {**PEERS, "main_running_ratio": 0.1000 / 0.1033}) is None


@pytest.mark.parametrize("figure", ["main_running_ratio", "main_run_queue_ratio", "step_seconds"])
def test_what_is_not_known_is_not_guessed(figure: str) -> None:
    """An exporter that may not look at a process has no times of its thread."""
    without = {name: value for name, value in PEERS.items() if name != figure}
    own = {name: value for name, value in SLEEPS.items() if name != figure}

    assert figure == "main_run_queue_ratio" or more(SLEEPS, without) is None
    assert figure == "step_seconds" or more(own, PEERS) is None


@pytest.mark.parametrize(("times", "share"), [(1.2, 0.06), (2.0, 1.0)])
def test_who_runs_a_little_more_does_not_wait_for_that(times: float, share: float) -> None:
    """Peers wait for a CPU four times as long as they run, and so does who really runs more."""
    peers = PEERS | {"main_running_ratio": 0.1, "main_run_queue_ratio": 0.4}
    own = HOGGED | {"main_running_ratio": times * 0.1 * 0.1033 / 0.1633}
    doing = [
        ThreadState(stage, state, half)
        for stage in ("forward", "backward")
        for state, half in (("running", 0.2), ("cpu_queue", 0.8))
    ]
    usual = {name: Quantiles(value, value, value) for name, value in peers.items()}
    case = case_in(lateness({"data": 0.3}), Evidence(own, doing), usual)
    running = next(row for row in CODE_ROWS if row.detail == RUNNING)

    assert runs_longer(running, case) == pytest.approx(share, abs=0.03)
