"""Which series are shown: the core always, detail on request, counts of trouble once they count."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.scrape.levels import ALL, LEVELS, PARTS, Shown, exposed_name
from fleet_simulator.fleet import Fleet, fleet_app
from fleet_simulator.plan import equal_jobs
from generators.metrics import families_by_collector
from tests.exporter.asgi import ask
from tests.exporter.clock import Clock
from tests.repo.test_alerts import core_files, read_by_rules

MOST_CORE, MOST_WITH_DETAIL = 400, 1_000
# Rule files that nothing replaces: what they read is decided in the exporter.
GOING = {"cause", "fallback"}
COMING = {
    "rankskew_job_absent_ranks",
    "rankskew_job_judge_info",
    "rankskew_late_cause_figure",
    "rankskew_late_cause_info",
    "rankskew_late_cause_share_ratio",
    "rankskew_node_starting_seconds",
    "rankskew_rank_starting_seconds",
}
MOST_OF_A_RANK, MOST_OF_A_GPU, MOST_OF_THE_REST = 20, 20, 80


def counts(name: str, *values: tuple[str, float]) -> Metric:
    """A family with a series for each GPU."""
    family = CounterMetricFamily(name, "Help.", labels=["gpu"])
    for gpu, value in values:
        family.add_metric([gpu], value)
    return family


def shown(families: Iterable[Metric]) -> list[str]:
    """Return the names and first labels of what is shown."""
    return [
        " ".join([sample.name, *sample.labels.values()])
        for family in families
        for sample in family.samples
    ]


def page(directory: Path, detail: str, seconds: float = 300.0) -> list[str]:
    """Return the series of a simulated node of eight GPUs and ranks, after so many *seconds*."""
    clock = Clock()
    fleet = Fleet(equal_jobs(2, 8, 1, []), directory, clock, frozenset({detail}))
    app = fleet_app(fleet, "")
    for _ in range(2):
        answer = ask(app, "GET", "/node/sim-01/metrics")
        clock.seconds += seconds
    assert answer is not None
    return [line for line in answer.text.splitlines() if not line.startswith("#")]


def test_core_is_shown_and_detail_is_not() -> None:
    """What nobody has named is detail; the memory's clock is, where that of the SMs is core."""
    clocks = GaugeMetricFamily("rankskew_gpu_clock_hertz", "Help.", labels=["clock"])
    for clock in ("sm", "memory"):
        clocks.add_metric([clock], 1.0)
    names = ("steps", "rank_read_bytes", "something_new")
    families = [counts(f"rankskew_{name}_total", ("0", 1.0)) for name in names]

    assert shown(Shown().of("ranks", [*families, clocks])) == [
        "rankskew_steps_total 0",
        "rankskew_gpu_clock_hertz sm",
    ]


@pytest.mark.parametrize("detail", ["ranks", ALL])
def test_detail_of_a_collector_is_everything_that_it_has(detail: str) -> None:
    """Zeros too; collectors that were not named keep theirs to themselves."""
    families = [counts("rankskew_gpu_xid_events_total", ("0", 0.0))]
    exporter = Shown(frozenset({detail}))

    assert shown(exporter.of("ranks", families)) == ["rankskew_gpu_xid_events_total 0"]
    assert bool(shown(exporter.of("gpu_xid", families))) == (detail == ALL)


def test_count_of_trouble_is_shown_from_the_first_trouble_on() -> None:
    """It stays when it goes back to 0, and is forgotten with its GPU."""
    exporter = Shown()
    name = "rankskew_gpu_xid_events_total"

    def seen(*values: tuple[str, float]) -> list[str]:
        return shown(exporter.of("gpu_xid", [counts(name, *values)]))

    assert seen(("0", 0.0), ("1", 0.0)) == []
    assert seen(("0", 0.0), ("1", 2.0)) == [f"{name} 1"]
    assert seen(("0", 0.0), ("1", 0.0)) == [f"{name} 1"]
    assert seen(("0", 0.0)) == []
    assert seen(("0", 0.0), ("1", 0.0)) == []


def test_simulated_node_stays_within_its_budget(tmp_path: Path) -> None:
    """For eight GPUs and ranks 400 series, 1,000 with all detail: 20 a rank, 20 a GPU, 80 more."""
    lines = page(tmp_path, "")
    ranks = Counter(re.findall(r'(?<![a-z_])rank="(\d+)"', "\n".join(lines)))
    alone = [line for line in lines if not re.search(r'(?<![a-z_])rank="\d+"', line)]
    gpus = Counter(re.findall(r'gpu="(\d+)"', "\n".join(alone)))
    rest = [line for line in alone if 'gpu="' not in line]

    assert len(ranks) == len(gpus) == 8
    assert max(ranks.values()) <= MOST_OF_A_RANK
    assert max(gpus.values()) <= MOST_OF_A_GPU
    assert len(rest) <= MOST_OF_THE_REST
    assert len(lines) <= MOST_CORE < len(page(tmp_path, ALL)) <= MOST_WITH_DETAIL


def test_lists_name_what_is_exposed_and_what_rules_read() -> None:
    """Alerts work on every exporter, and a metric that is renamed does not become detail."""
    exposed = {exposed_name(f) for _, _, families in families_by_collector() for f in families}
    read = set().union(*(read_by_rules(path) for path in core_files() if path.stem not in GOING))
    read = {name for name in read & exposed if not name.startswith("rankskew_block_")}

    assert read
    assert {name for name in read if name not in LEVELS and name not in PARTS} == set()
    exposed |= COMING | {name for name in LEVELS if name.startswith("process_")}
    assert {*LEVELS, *PARTS} - exposed == set()
    assert not LEVELS.keys() & PARTS.keys()
