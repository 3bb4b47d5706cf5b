"""The simulated nodes of benchmarks/scale.py show what real ones would, and one rank is late."""

import gzip
import re
import time
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from benchmarks.scale import SIZES, Seen, cpu_seconds, failures, merged, plans
from benchmarks.scale_job import (
    BLOCK_BUSY,
    BLOCK_SECONDS,
    BUSY_SECONDS,
    FAULT_RATIO,
    FAULT_STAGE,
    FIRST_STEPS,
    RANKS_PER_NODE,
    STAGE_SHARES,
    Rank,
    block_fields,
)
from benchmarks.scale_load import Fleet, planted, simulated_jobs
from benchmarks.scale_page import ROOT, Node, fleet, read_by_rules
from benchmarks.scale_verdict import Told
from docs.build import exposed_name, families_by_collector
from exporter.accounting.step import charge
from rank_probe.verdict import LOST_KINDS

PAGE = ROOT / "docs" / "scale.md"
DASHBOARDS = ROOT / "dashboards" / "json"
RANKS = 64
LATE_NODE = planted(RANKS) // RANKS_PER_NODE
NOW = 1.8e9
# Slurm tasks in no pod, which step on and are judged, in one peer group.
NOT_SIMULATED = {
    "rankskew_rank_finished",
    "rankskew_rank_pod_info",
    "rankskew_rank_silent_seconds",
    "rankskew_stage_elapsed_seconds",
    "rankskew_job_not_judgeable",
    "rankskew_group_wait_seconds_total",
    "rankskew_late_line_ratio",  # of the late rank only
}
# Healthy GPUs that are not divided, on nodes for which nobody said how many there must be.
NOT_ON_THESE_GPUS = {
    "rankskew_gpu_mig_info",
    "rankskew_gpu_mig_memory_total_bytes",
    "rankskew_gpu_mig_memory_used_bytes",
    "rankskew_gpu_mig_sm_active_ratio",
    "rankskew_gpu_xid_errors_total",
    "rankskew_gpus_expected",
    "rankskew_nvml_call_stuck_seconds",
    "rankskew_nvml_error_info",
}
# What a page has only by the join, and only without it.
JOINED = re.compile(
    "rankskew_(late|paced|wait_caused|join|joined|job_(gpus|stage|slowdown|step|ranks|coverage))_"
    "|rankskew_job_ranks$"
)
BLOCK = re.compile("rankskew_block_")

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(page: str) -> list[Metric]:
    """Return what prometheus_client's own parser finds on *page*."""
    return list(text_string_to_metric_families(page))  # type: ignore[no-untyped-call] # upstream


def series(families: Iterable[Metric]) -> Series:
    """Return the value of each series; one that is there twice fails."""
    samples = [sample for family in families for sample in family.samples]
    names = Counter((sample.name, tuple(sample.labels.items())) for sample in samples)
    assert max(names.values()) == 1
    return {(sample.name, tuple(sample.labels.items())): sample.value for sample in samples}


def nodes(joined: bool = False, everything: bool = False) -> list[Node]:
    return fleet(simulated_jobs(RANKS, 1), joined, everything)


def names(families: Iterable[Metric]) -> set[str]:
    """Return the names of those *families* that have a series."""
    return {exposed_name(family) for family in families if family.samples}


@pytest.mark.parametrize(("joined", "absent"), [(False, JOINED), (True, BLOCK)])
def test_page_shows_all_that_a_rank_and_the_rules_can_have(
    joined: bool, absent: re.Pattern[str]
) -> None:
    """No series of a rank is forgotten, and none is there that the exporter does not expose."""
    families = parsed(nodes(joined)[LATE_NODE].page(0.0, NOW))
    known = [family for _, _, found in families_by_collector() for family in found]
    promised = {
        exposed_name(family) for family in known if "job_id" in getattr(family, "_labelnames", ())
    }
    read = read_by_rules() & {exposed_name(family) for family in known}
    elsewhere = NOT_SIMULATED | {name for name in promised if absent.match(name)}

    assert names(families) <= {exposed_name(family) for family in known}
    assert promised - names(families) == elsewhere & promised
    assert read - {exposed_name(family) for family in families} <= elsewhere


@pytest.mark.parametrize("joined", [False, True])
def test_gpu_shows_all_that_an_exporter_knows_of_one(joined: bool) -> None:
    """With all series, every family of a GPU that the documentation lists, but for errors."""
    page = nodes(joined, everything=True)[1].page(0.0, NOW)
    of_gpus = {
        exposed_name(family)
        for collector, _, found in families_by_collector()
        if collector.startswith("gpu_")
        for family in found
    }

    assert of_gpus - names(parsed(page)) == NOT_ON_THESE_GPUS


def test_nobody_reads_what_the_documentation_says_can_be_dropped() -> None:
    """No rule and no dashboard would be empty without them."""
    advice = next(line for line in PAGE.read_text().splitlines() if "no rule and no" in line)
    dropped = set(re.findall("`(rankskew_[a-z_]+)`", advice))
    dashboards = "".join(path.read_text() for path in DASHBOARDS.glob("*.json"))

    assert len(dropped) > 1
    assert dropped <= {exposed_name(family) for family in parsed(nodes(True)[0].page(0.0, NOW))}
    assert not dropped & (read_by_rules() | set(re.findall(r"rankskew_\w+", dashboards)))


def test_only_the_node_of_the_late_rank_shows_it() -> None:
    """The job's verdict is on every node, the late rank's own series are on one."""
    pages = [series(parsed(node.page(5.0, NOW))) for node in nodes(joined=True)]
    late = [
        {(name, dict(labels)["rank"]) for name, labels in page if name.startswith("rankskew_late_")}
        for page in pages
    ]
    lost = [{key: page[key] for key in page if "gpus_lost" in key[0]} for page in pages]

    assert [number for number, found in enumerate(late) if found] == [LATE_NODE]
    assert {rank for _, rank in late[LATE_NODE]} == {str(planted(RANKS))}
    assert lost == [lost[0]] * len(pages)
    assert len(lost[0]) > len(LOST_KINDS)


def test_verdict_says_what_the_accounting_does() -> None:
    """The others wait for the straggler's excess, less what they wait for each other anyway."""
    job = simulated_jobs(RANKS, 1)[0]
    told = Told(job).at(0.0)
    waited = (RANKS - 1) * FAULT_RATIO * BUSY_SECONDS / job.step_seconds

    assert told["gpus_lost.persistent"] == pytest.approx(waited, rel=0.3)
    assert max(STAGE_SHARES, key=lambda stage: told[f"late.gpus.{stage}"]) == FAULT_STAGE
    assert 1.05 < told["slowdown"] < 1.2


def test_block_stays_until_the_next_ends() -> None:
    """Where no join judges, a rank's gauges are of its last whole block, and add up."""
    job = simulated_jobs(RANKS, 1)[0]
    rank = Rank(job, 0)
    block = job.block_steps
    left = block - FIRST_STEPS % block
    states = [dict(rank.show(steps, NOW)) for steps in (0, left - 1, left)]
    first, same, other = ([state[name] for name in block_fields()] for state in states)

    assert block * job.step_seconds >= BLOCK_SECONDS
    assert block == 2 ** (block.bit_length() - 1)
    assert first == same
    assert first != other
    assert states[0][BLOCK_BUSY] == pytest.approx(sum(first))


@pytest.mark.parametrize("joined", [False, True])
def test_counters_only_grow_and_series_stay(joined: bool) -> None:
    """From scrape to scrape the series are the same ones, and no counter goes back."""
    node = nodes(joined, everything=True)[2]
    pages = [parsed(node.page(elapsed, NOW + elapsed)) for elapsed in (0.0, 0.1, 15.0, 30.0)]
    counters = {f"{family.name}_total" for family in pages[0] if family.type == "counter"}
    seen = [series(page) for page in pages]

    for before, after in pairwise(seen):
        assert before.keys() == after.keys()
        assert [key for key in before if key[0] in counters and after[key] < before[key]] == []
    grown = {name for name, labels in seen[0] if seen[-1][name, labels] > seen[0][name, labels]}
    assert {"rankskew_steps_total", "rankskew_gpu_energy_joules_total"} <= grown
    timed = [key for key in seen[0] if key[0].startswith("rankskew_stage_") and "total" in key[0]]
    assert len(timed) > RANKS_PER_NODE
    assert [key for key in timed if seen[-1][key] <= seen[0][key]] == []


def test_planted_rank_is_the_late_one_and_time_adds_up() -> None:
    """The reference accounting names it and its stage; all ranks take the same time a step."""
    job = simulated_jobs(RANKS, 1)[0]
    ranks: dict[int, dict[str, float]] = {}
    for node in nodes():
        first, last = (series(parsed(node.page(at, NOW + at))) for at in (0.0, 60.0))
        for (name, labels), value in last.items():
            about = dict(labels)
            if name == "rankskew_stage_seconds_total":
                rank = ranks.setdefault(int(about["rank"]), {})
                rank[about["stage"]] = value - first[name, labels]

    minute = charge(ranks, dict.fromkeys(ranks, "all"))
    assert (minute.pacer, minute.stage) == (planted(RANKS), FAULT_STAGE)
    steps = int(60.0 / job.step_seconds)
    assert [sum(stages.values()) for stages in ranks.values()] == pytest.approx(
        [steps * job.step_seconds] * RANKS
    )


def test_every_node_has_its_own_ranks_and_gpus() -> None:
    """Ranks are counted on over the nodes of a job, and no two nodes share a GPU."""
    pages = [node.page(0.0, NOW) for node in fleet(simulated_jobs(RANKS, 2), False, False)]
    found = [
        dict(labels)
        for page in pages
        for name, labels in series(parsed(page))
        if name == "rankskew_gpu_rank_info"
    ]

    assert [(each["job_id"], int(each["rank"])) for each in found] == [
        (f"job-{job:04}", rank) for job in (0, 1) for rank in range(RANKS // 2)
    ]
    assert len({each["gpu_uuid"] for each in found}) == RANKS
    assert "@" not in "".join(pages)


def test_scraper_gets_the_page_of_the_node_it_asks_for() -> None:
    """As it is, or compressed for one who says that he can read that."""
    load = Fleet(nodes(), clock=lambda: NOW)
    plain = load.answer(b"GET /node/3 HTTP/1.1\r\n\r\n")
    small = load.answer(b"GET /node/3 HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n")
    head, _, body = small.partition(b"\r\n\r\n")

    assert f'rank="{3 * RANKS_PER_NODE}"'.encode() in plain
    assert b',rank="0"' not in plain
    assert f"Content-Length: {len(body)}".encode() in head
    assert gzip.decompress(body).count(b"\n") == plain.partition(b"\r\n\r\n")[2].count(b"\n")


def test_all_series_are_those_that_a_gpu_is_promised_to_cost_at_most() -> None:
    """By default a GPU shows what rules read; the switch adds the rest, to just under 64."""
    both = [nodes(everything=everything)[0].page(0.0, NOW) for everything in (False, True)]
    read, everything = [len(re.findall(r'[{,]gpu="5"', page)) for page in both]

    assert 5 < read < everything
    assert 50 < everything <= 64


def row(**changes: Any) -> dict[str, Any]:
    return {
        "ranks": 8,
        "source": "join",
        "jobs": 1,
        "GPU series": "read",
        "missed": 0,
        "nodes down": 0,
        "rules CPU s of 15": 2.9,
        "spoke": "join",
        "straggler named": True,
        "others accused": 0,
    } | changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"missed": 1}, "1 evaluations missed"),
        ({"nodes down": 2}, "2 nodes were not scraped"),
        ({"rules CPU s of 15": 3.1}, "rules take 3.1 CPU s of 15"),
        ({"spoke": ""}, "the rules went by nothing"),
        ({"straggler named": False}, "the straggler is not the one and only that is paged"),
        ({"others accused": 3}, "3 others are accused"),
    ],
)
def test_broken_promise_is_said(changes: dict[str, Any], said: str) -> None:
    """Each promise of the benchmark is checked, and what keeps all of them is quiet."""
    assert failures(row()) == []
    assert failures(row(**changes)) == [f"8 ranks, join: {said}"]


def test_rule_that_runs_each_minute_counts_a_quarter() -> None:
    """Rules of groups with other intervals can be compared: seconds in 15 s, dearest first."""
    seen = Seen()
    rules = [{"name": "a", "evaluationTime": 0.2}]
    often = {"name": "often", "interval": 15, "evaluationTime": 0.2, "rules": rules}
    rarely = {"name": "rarely", "interval": 60, "evaluationTime": 0.4, "rules": rules * 2}
    seen.note_rules([rarely, often])
    plan = plans(["--ranks", "8", "--source", "join"])[0]

    assert [(r["group"], r["s in 15 s"]) for r in seen.rows(plan)] == [
        ("often", 0.2),
        ("rarely", 0.05),
        ("rarely", 0.05),
    ]


class Spent:
    """A Prometheus whose clock of CPU seconds stands where *readings* say."""

    def __init__(self, *readings: float) -> None:
        self._readings = iter(readings)

    def cpu_seconds(self) -> float:
        return next(self._readings)


def test_cpu_is_told_for_15_seconds_however_late_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn that took twice as long counts half."""
    times = iter([0.0, 0.0, 15.0, 15.0, 45.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)

    found = cpu_seconds(Spent(10.0, 12.0, 18.0), 2)  # type: ignore[arg-type] # a double

    assert found == [2.0, 3.0]


def test_result_of_one_size_leaves_the_others(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One size measured again replaces its row only."""
    monkeypatch.setattr("benchmarks.scale.RESULTS", tmp_path)
    (tmp_path / "scale.json").write_text(
        '{"rows": [{"ranks": 8, "source": "join", "jobs": 1, "GPU series": "read", "x": 1},'
        ' {"ranks": 16, "source": "join", "jobs": 1, "GPU series": "read", "x": 2}]}'
    )
    again = [{"ranks": 8, "source": "join", "jobs": 1, "GPU series": "read", "x": 3}]

    assert [each["x"] for each in merged("scale", again)] == [3, 2]


def test_default_is_every_size_with_both_sources() -> None:
    """`make bench-scale` measures what the documentation shows."""
    assert [(plan.ranks, plan.source) for plan in plans([])] == [
        (ranks, source) for ranks in SIZES for source in ("join", "block")
    ]
