"""End to end: simulated jobs, judged, shown by real exporters, and whom the rules wake for them."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.alerts.job_series import input_series
from tests.alerts.jobs import Fault, Job, gpus_lost, simulate
from tests.alerts.promtool import Expect
from tests.alerts.promtool import assert_rules as assert_all_rules

# What it takes to name a rank; the others read from these, or have nothing to do with them.
GROUPS = ("thresholds", "ranks", "late", "hang", "coverage", "cost")
assert_rules = functools.partial(assert_all_rules, groups=GROUPS)
FIRING = 'ALERTS{alertstate="firing",severity!="info"}'


def last_scrape(job: Job) -> float:
    return job.seconds // job.scrape_seconds * job.scrape_seconds


def close_to(expr: str, truth: float, tolerance: float, at_seconds: float) -> Expect:
    """Expect *expr* within *tolerance*, relative, of *truth*."""
    return Expect(f"abs({expr} / {truth:.9g} - 1) < bool {tolerance:g}", at_seconds, {"{}": 1})


def ever_fired(job: Job, *alerts: str) -> Expect:
    """Expect that these *alerts*, by their labels, and no others fire in the whole run.

    The node is only looked at where one of them names it.
    """
    end = last_scrape(job)
    labels = "alertname, rank, stage" + (", instance" if "instance=" in "".join(alerts) else "")
    fired = f"group by ({labels}) (max_over_time({FIRING}[{end:g}s]))"
    return Expect(fired, end, dict.fromkeys(alerts, 1))


def straggler(rank: int, stage: str) -> str:
    return f'{{alertname="RankskewStraggler",rank="{rank}",stage="{stage}"}}'


def assert_fired(folder: Path, job: Job, alerts: Sequence[str], *more: Expect) -> None:
    """Run *job* and assert that the rules wake somebody with *alerts* and no others, ever."""
    series = input_series(job, simulate(job))
    assert_rules(folder, series, [ever_fired(job, *alerts), *more], job.scrape_seconds)


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize(
    ("ranks", "stage", "ratio"),
    [(4, "data", 0.12), (4, "forward", 0.25), (2, "backward", 1.0), (16, "optimizer", 0.25)],
)
def test_late_rank_pages_with_stage_and_cost(
    tmp_path: Path, ranks: int, stage: str, ratio: float, join: bool
) -> None:
    """By the join, or by the judge of its node; who judges is said."""
    job = Job(ranks=ranks, seed=ranks, seconds=300, join=join, faults=(Fault(1, stage, ratio),))
    end = last_scrape(job)
    truth = gpus_lost(simulate(job), end, 120)

    assert_fired(
        tmp_path,
        job,
        [straggler(1, stage)],
        Expect(f"group by (rank) ({FIRING})", end, {'{rank="1"}': 1}),
        close_to("sum(rank:rankskew_gpus_lost:sum)", truth, 0.12, end),
        close_to(
            'sum(job_kind:rankskew_gpus_lost:sum{kind="persistent"})'
            " / sum(rank:rankskew_gpus_lost:sum)",
            1,
            0.001,
            end,
        ),
        Expect(
            "group by (judge) (rankskew_job_judge_info)",
            end,
            {f'{{judge="{"join" if join else "node"}"}}': 1},
        ),
    )


@pytest.mark.parametrize(
    ("join", "scrape_seconds", "quiet", "fired"),
    [(True, 5, 25, 40), (True, 15, 30, 60), (False, 15, 150, 225)],
)
def test_page_comes_in_time_with_its_right_cost(
    tmp_path: Path, join: bool, scrape_seconds: float, quiet: float, fired: float
) -> None:
    """From the job's start, five seconds in: some tens of steps; a node takes two minutes."""
    fault = Fault(2, "data", 0.5)
    job = Job(seed=5, scrape_seconds=scrape_seconds, join=join, faults=(fault,))
    truth = gpus_lost(simulate(job), fired, 20)
    page = f"page:rankskew_gpus_lost:last1m and on (rank) {FIRING}"

    assert_fired(
        tmp_path,
        job,
        [straggler(2, "data")],
        Expect(FIRING, quiet, {}),
        close_to(f"sum({page})", truth, 0.1, fired),
    )


HEALTHY = {
    "noisy steps": Job(ranks=8, stage_noise=0.2, common_noise=0.1),
    "rotating": Job(ranks=4, faults=(Fault(None, "data", 0.5),)),
    "unequal groups": Job(ranks=8, group_work=(1.0, 1.3)),
    "slow together": Job(ranks=8, slow_together_seconds=120),
    "restart": Job(ranks=4, restart_seconds=120),
    "exporter restart": Job(ranks=4, unseen_seconds=150),
    "steps of 12 seconds": Job(ranks=4, busy_seconds=12, seconds=600),
    "two nodes": Job(ranks=16),
    "one rank": Job(ranks=1),
}


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_job_wakes_nobody(tmp_path: Path, name: str, join: bool) -> None:
    """Noise, rotation, unequal groups, restarts, gaps and long steps are nobody's fault."""
    assert_fired(tmp_path, replace(HEALTHY[name], seed=7, join=join), [])


def test_slow_node_is_one_page(tmp_path: Path) -> None:
    """It names the node, and none of its ranks."""
    faults = tuple(Fault(rank, "forward", 0.25) for rank in range(8, 16))
    job = Job(ranks=16, seed=5, faults=faults)
    end = last_scrape(job)
    truth = gpus_lost(simulate(job), end, 120)
    node = '{alertname="RankskewSlowNode",instance="node1:9917",stage="forward"}'

    assert_fired(
        tmp_path, job, [node], close_to("sum(node:rankskew_gpus_lost:sum)", truth, 0.1, end)
    )


def test_pauses_are_one_page(tmp_path: Path) -> None:
    """A rank that halts the others for four seconds every 25 pages under one stage, to the end."""
    job = Job(ranks=4, seed=1, seconds=600, faults=(Fault(1, "data", 8, every=40),))
    end = last_scrape(job)
    kinds = f"group by (kind) (max_over_time(rank:rankskew_late:ratio[{end:g}s]))"

    assert_fired(
        tmp_path,
        job,
        [straggler(1, "data")],
        Expect(kinds, end, {'{kind="pauses"}': 1}),
        Expect(f"group by (rank) ({FIRING})", end, {'{rank="1"}': 1}),
        close_to("sum(rank:rankskew_gpus_lost:sum)", 3 * 8 / (40 * 1.08 + 8), 0.1, end),
    )


@pytest.mark.parametrize("stage", ["checkpoint", "eval"])
@pytest.mark.parametrize(("seconds", "fires"), [(1.0, True), (0.04, False)])
def test_duty_warns_of_its_rank_from_a_twentieth_of_the_gpus_on(
    tmp_path: Path, seconds: float, fires: bool, stage: str
) -> None:
    """Rank 0 saves every 25 steps for all: told two saves after the first, by no other alert."""
    job = Job(ranks=4, seed=1, seconds=150, busy_seconds=0.1, scrape_seconds=5)
    saves = Fault(0, stage, seconds / job.busy_seconds, every=25, start_seconds=60.0)
    steps = simulate(replace(job, faults=(saves,)))
    ends = [s.end_seconds for s in steps if s.stages[0].get(stage, 0.0) > 0.9 * seconds]
    end = last_scrape(job)
    duty = 'max_over_time(rank:rankskew_late:ratio{kind="duty"}'
    stall = f'{{alertname="RankskewCheckpointStall",rank="0",stage="{stage}"}}'
    # The judge looks every 2 s, ranks read and push within 2 s, and a scrape comes after 5 s.
    told = ends[2] // 1 + 1 + 2 + 2 + 5

    expected = [
        ever_fired(job, *([stall] if fires else [])),
        Expect(f"group by (rank) ({duty}[{end:g}s]))", end, {'{rank="0"}': 1}),
        Expect(f"group by (alertname, rank, stage) ({FIRING})", told, {stall: 1} if fires else {}),
    ]
    series = input_series(job, steps)
    assert_all_rules(tmp_path, series, expected, job.scrape_seconds, groups=(*GROUPS, "info"))


def test_rank_that_costs_next_to_nothing_wakes_nobody(tmp_path: Path) -> None:
    """A rank is late, but communication takes so long that it hardly matters."""
    noise = Job(communication_ratio=8, stage_noise=0.01, common_noise=0.01, seconds=600)
    job = replace(noise, faults=(Fault(1, "data", 0.1),))
    late = Expect("group by (rank) (rank:rankskew_late:ratio)", 600, {'{rank="1"}': 1})

    assert_fired(tmp_path, job, [], late)


def test_transient_straggler_clears(tmp_path: Path) -> None:
    """A rank that was late for half a minute pages once, and no longer two minutes later."""
    job = Job(seed=5, seconds=300, faults=(Fault(1, "data", 1.0, 1, 120, 150),))

    assert_fired(tmp_path, job, [straggler(1, "data")], Expect("ALERTS", 300, {}))


@pytest.mark.parametrize("join", [True, False])
def test_unmeasured_wait_is_not_judgeable_and_wakes_nobody(tmp_path: Path, join: bool) -> None:
    """Without sync nobody knows whether anyone waits; a series says so."""
    job = Job(sync_measured=False, join=join, faults=(Fault(1, "data", 0.5),))
    reason = "group by (reason) (job_reason:rankskew_not_judgeable:bool)"

    assert_fired(tmp_path, job, [], Expect(reason, last_scrape(job), {'{reason="no_sync"}': 1}))


def test_missing_rank_lowers_coverage_and_hides_no_straggler(tmp_path: Path) -> None:
    """The ranks that are seen are judged; that one is not seen is said."""
    job = Job(ranks=8, missing=1, faults=(Fault(2, "data", 0.25),))
    end = last_scrape(job)
    reason = 'job_reason:rankskew_not_judgeable:bool{job_id="j",reason="ranks_missing"}'

    assert_fired(
        tmp_path,
        job,
        [straggler(2, "data"), '{alertname="RankskewRanksMissing"}'],
        close_to("sum(job:rankskew_coverage:ratio)", 7 / 8, 0.001, end),
        Expect("job_reason:rankskew_not_judgeable:bool", end, {reason: 1}),
    )
