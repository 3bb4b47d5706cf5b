"""What the ranks of a node do, put together for the rules that need a mean or a number of ranks."""

from collections.abc import Callable
from typing import Any

import pytest

from exporter.collectors.rank.work import RankWorkCollector
from exporter.ranks.store import RankStore
from exporter.vocabulary.thresholds import Thresholds
from tests.exporter.clock import Clock
from tests.exporter.collectors.expose import shown
from tests.exporter.snapshots import snapshot

RUNTIME = {
    "torch": "2.13.0",
    "cuda": "13.0",
    "nccl": "2.28.3",
    "python": "3.11.7",
    "driver": "570.86.15",
    "env_hash": "0a1b2c3d",
    "device_count": "8",
    "probe": "0.1.0",
}


class Node:
    """A node whose ranks report what a function of the minutes says."""

    def __init__(self, *ranks: Callable[[float], dict[str, Any]]) -> None:
        self._ranks = ranks
        self.clock = Clock(0.0)
        self.store = RankStore(clock=self.clock)
        self._collector = RankWorkCollector(self.store, Thresholds())
        self._report(0.0)

    def _report(self, minutes: float) -> None:
        self.clock.seconds = 60 * minutes
        for rank, told in enumerate(self._ranks):
            self.store.put(
                snapshot(rank=rank, pid=rank, sequence=int(100 * minutes) + 1, **told(minutes))
            )
        self.page = shown(self._collector)

    def at(self, minutes: int) -> list[str]:
        """Return what is exposed after so many minutes, with a scrape in each."""
        while self.clock.seconds < 60 * minutes:
            self._report(self.clock.seconds / 60 + 1)
        return self.page

    def of(self, name: str) -> dict[str, float]:
        """Return the values of a series by its labels."""
        lines = (line.rpartition(" ") for line in self.page)
        return {
            labels.removeprefix(name): float(value)
            for labels, _, value in lines
            if labels.startswith(name + "{")
        }


GROUP = '{job_id="llama",peer_group="all"}'


def test_work_per_step_is_of_the_last_ten_minutes_in_the_ranks_own_unit() -> None:
    """Tokens if they are counted, else samples, else steps."""
    node = Node(
        lambda m: {"steps": int(60 * m), "tokens": int(60_000 * m), "samples": int(m)},
        # A long text an hour ago is forgotten.
        lambda m: {"steps": int(60 * m), "tokens": int(120_000 * m) + (10**9 if m > 5 else 0)},
        lambda m: {"steps": 7, "tokens": 7},  # Stands still.
        lambda m: {"steps": int(60 * m), "peer_group": "pp1", "samples": int(240 * m)},
        lambda m: {"steps": int(60 * m), "job_id": "steps"},
    )
    node.at(20)

    assert node.of("rankskew_node_work_per_step_max") == {
        GROUP: 2000.0,
        '{job_id="llama",peer_group="pp1"}': 4.0,
        '{job_id="steps",peer_group="all"}': 1.0,
    }
    assert node.of("rankskew_node_work_per_step_mean")[GROUP] == 1500.0
    assert node.of("rankskew_node_working_ranks")[GROUP] == 2.0


def test_padding_is_a_share_of_the_tokens_of_ranks_that_count_it() -> None:
    """A rank that counts none makes it no smaller."""
    node = Node(
        lambda m: {"tokens": int(1000 * m), "padding_tokens": int(400 * m)},
        lambda m: {"tokens": int(9000 * m)},
    )
    assert node.of("rankskew_node_padding_ratio") == {}
    node.at(5)

    assert node.of("rankskew_node_padding_ratio") == {'{job_id="llama"}': 0.4}


@pytest.mark.parametrize(("seconds", "starved"), [(12.1, {GROUP: 1.0}), (11.9, {})])
def test_rank_is_starved_that_waits_a_fifth_of_five_minutes(
    seconds: float, starved: dict[str, float]
) -> None:
    """Its data and its copies together; what it waited before does not count."""
    node = Node(
        lambda m: {"stage_seconds": {"data": 900 + (seconds - 2) * m, "h2d": 2 * m, "sync": 9 * m}},
        lambda m: {"stage_seconds": {"data": m, "sync": 40 * m}},
    )
    node.at(6)

    assert node.of("rankskew_node_starved_ranks") == starved


def test_checkpoints_are_a_share_of_the_last_hour_of_the_slowest_rank() -> None:
    """The first one counts, and those before the exporter saw the rank do not."""
    node = Node(
        lambda m: {"stage_seconds": {"checkpoint": 600.0} if m > 30 else {"sync": m}},
        lambda m: {"stage_seconds": {"checkpoint": 3000.0 + m}},
    )
    node.at(60)
    assert node.of("rankskew_node_checkpoint_ratio") == {'{job_id="llama"}': 600 / 3600}

    node.at(92)
    assert node.of("rankskew_node_checkpoint_ratio") == {'{job_id="llama"}': 60 / 3600}


def test_process_that_starts_again_counts_from_its_start() -> None:
    """Its counts go back to 0, also where a container gives it the same number."""
    node = Node(
        lambda m: {
            "steps": int(60 * m + 100) % 300,
            "tokens": int(60_000 * m + 100_000) % 300_000,
        }
    )
    node.at(5)

    assert node.of("rankskew_node_work_per_step_mean") == {GROUP: 1000.0}


def test_ranks_are_counted_by_versions_settings_and_gpus() -> None:
    """A rank that knows its GPUs; the probe's own version makes no difference."""
    node = Node(
        lambda m: {"runtime_info": RUNTIME},
        lambda m: {"runtime_info": RUNTIME | {"probe": "0.2.0"}},
        lambda m: {"runtime_info": RUNTIME | {"torch": "2.12.0"}},
        lambda m: {"runtime_info": RUNTIME | {"device_count": ""}},
    )

    assert sorted(node.of("rankskew_node_runtime_ranks").values()) == [1.0, 2.0]


def test_rank_that_falls_silent_or_ends_is_no_longer_counted() -> None:
    """Its last words are not those of the job."""
    node = Node(lambda m: {"runtime_info": RUNTIME, "steps": int(m), "finished": m > 3})
    node.at(3)
    assert node.page
    node.at(4)

    assert node.page == []
