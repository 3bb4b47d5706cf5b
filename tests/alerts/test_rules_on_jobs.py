"""The rules name exactly the late ranks of simulated jobs, their stage and their cost."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from tests.alerts.jobs import STAGE_SHARES, Fault, Job, gpus_lost, input_series, simulate
from tests.alerts.promtool import Expect
from tests.alerts.promtool import assert_rules as assert_all_rules

Named = set[tuple[int, str]]

# What it takes to name a rank; the others read from these, or have nothing to do with them.
GROUPS = ("thresholds", "minutes", "ranks", "hang", "straggler", "coverage")
assert_rules = functools.partial(assert_all_rules, groups=GROUPS)


def ever_named(job: Job, named: Named) -> Expect:
    """Expect pages for exactly *named* ranks and stages over the whole run."""
    end = last_scrape(job)
    firing = 'ALERTS{alertname="RankskewStraggler",alertstate="firing"}'
    return Expect(
        f"group by (rank, stage) (max_over_time({firing}[{end:g}s]))",
        end,
        {f'{{rank="{rank}",stage="{stage}"}}': 1 for rank, stage in named},
    )


def close_to(expr: str, truth: float, tolerance: float, at_seconds: float) -> Expect:
    """Expect *expr* within *tolerance*, relative, of *truth*."""
    return Expect(f"abs({expr} / {truth:.9g} - 1) < bool {tolerance:g}", at_seconds, {"{}": 1})


def last_scrape(job: Job) -> float:
    return job.seconds // job.scrape_seconds * job.scrape_seconds


def assert_named(folder: Path, job: Job, named: Named, *more: Expect) -> None:
    """Run *job* and assert that the rules page for *named* and nobody else, ever."""
    series = input_series(job, simulate(job))
    assert_rules(folder, series, [ever_named(job, named), *more], job.scrape_seconds)


SHAPES = (
    [(4, stage, ratio) for stage in STAGE_SHARES for ratio in (0.1, 0.25, 0.5, 1.0)]
    + [
        (ranks, stage, ratio)
        for ranks, stage in [(2, "forward"), (8, "data"), (16, "backward"), (16, "optimizer")]
        for ratio in (0.1, 0.25, 1.0)
    ]
    + [(2, "data", 0.06)]
)


@pytest.mark.parametrize(("ranks", "stage", "ratio"), SHAPES)
def test_persistent_straggler_is_named_with_stage_and_cost(
    tmp_path: Path, ranks: int, stage: str, ratio: float
) -> None:
    """One late rank is named with its stage, nobody else is, and its cost is right to 10 %."""
    late = ranks // 2
    job = Job(ranks=ranks, seed=ranks, faults=(Fault(late, stage, ratio),))
    steps = simulate(job)
    end = last_scrape(job)
    expected = [
        ever_named(job, {(late, stage)}),
        close_to("sum(rank:rankskew_gpus_lost:mean1m)", gpus_lost(steps, end), 0.1, end),
        # Most of it is charged to the stage; noise lets others have some.
        Expect(
            f'sum(rank_stage:rankskew_gpus_lost:mean1m{{stage="{stage}"}})'
            " > bool 0.75 * sum(rank:rankskew_gpus_lost:mean1m)",
            end,
            {"{}": 1},
        ),
    ]

    assert_rules(tmp_path, input_series(job, steps), expected)


HEALTHY = {
    "plain": Job(),
    "noisy steps": Job(stage_noise=0.2, common_noise=0.1, seconds=400),
    "identical ranks": Job(stage_noise=0, common_noise=0, static_spread=0),
    "rotating": Job(faults=(Fault(None, "data", 0.5),)),
    "slow communication": Job(communication_ratio=1.0),
    "slow together": Job(slow_together_seconds=120, seconds=300),
    "restart": Job(restart_seconds=120, seconds=300),
    "restart of short steps": Job(busy_seconds=0.05, restart_seconds=70, seconds=180),
    "exporter restart": Job(unseen_seconds=150),
    "steps of 7 seconds": Job(busy_seconds=7, seconds=600),
    "steps of 12 seconds": Job(busy_seconds=12, seconds=900),
    "noisy steps of 30 seconds": Job(busy_seconds=30, stage_noise=0.2, seconds=1500),
    "one rank": Job(ranks=1),
}


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("name", HEALTHY)
def test_nobody_is_named_without_a_straggler(tmp_path: Path, name: str, ranks: int) -> None:
    """Noise, rotation, slow links, restarts, gaps and long steps are nobody's fault."""
    job = HEALTHY[name]
    job = job if job.ranks == 1 else replace(job, ranks=ranks, seed=ranks)

    assert_named(tmp_path, job, set())


def test_mild_difference_of_a_minute_names_nobody(tmp_path: Path) -> None:
    """6 % over its peers takes two minutes; 25 % does not."""
    mild = Fault(2, "data", 0.06, start_seconds=120, end_seconds=190)
    clear = replace(mild, ratio=0.25)
    job = Job(ranks=8, seed=8, seconds=330, stage_noise=0.01)
    (tmp_path / "clear").mkdir()

    assert_named(tmp_path, replace(job, faults=(mild,)), set())
    assert_named(tmp_path / "clear", replace(job, faults=(clear,)), {(2, "data")})


@pytest.mark.parametrize("join", [True, False])
def test_last_words_of_ranks_that_moved_disturb_nothing(tmp_path: Path, join: bool) -> None:
    """The job was cancelled in its second step and started again on other nodes."""
    job = Job(ranks=8, seed=8, join=join, faults=(Fault(2, "data", 0.25),))
    series = input_series(job, simulate(job))
    before = [_last_words(one) for one in series if "_info{" not in one["series"]]

    assert_rules(tmp_path, series + before, [ever_named(job, {(2, "data")})])


def _last_words(series: dict[str, str]) -> dict[str, str]:
    """Return *series* of the same rank on a node that it left long ago."""
    values = series["values"].split()
    metric = series["series"].partition("{")[0]
    last = "2" if metric == "rankskew_steps_total" else "0" if "timestamp" in metric else values[3]
    return {
        "series": series["series"].replace("node", "old"),
        "values": " ".join([last] * len(values)),
    }


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_two_late_ranks_are_both_named(tmp_path: Path, ranks: int) -> None:
    """Two ranks as late as each other are named, each with its own stage."""
    faults = (Fault(0, "data", 0.25), Fault(ranks - 1, "forward", 0.25))

    assert_named(
        tmp_path, Job(ranks=ranks, seed=5, faults=faults), {(0, "data"), (ranks - 1, "forward")}
    )


def test_late_rank_that_itself_waits_is_not_named(tmp_path: Path) -> None:
    """Of two late ranks only the one that the job waits for is worth a page."""
    faults = (Fault(0, "data", 0.5), Fault(3, "forward", 0.1))

    assert_named(tmp_path, Job(seed=5, faults=faults), {(0, "data")})


def test_late_rank_that_costs_next_to_nothing_wakes_nobody(tmp_path: Path) -> None:
    """A rank is late, but communication takes so long that it hardly matters."""
    fault = Fault(1, "data", 0.1)
    job = Job(communication_ratio=8, stage_noise=0.01, common_noise=0.01, faults=(fault,))
    late = Expect("group by (rank) (rank:rankskew_gpus_lost:mean1m)", 240, {'{rank="1"}': 1})

    assert_named(tmp_path, job, set(), late)


def test_two_late_ranks_share_the_cost_by_their_excess(tmp_path: Path) -> None:
    """Who is later by a quarter is charged a quarter more."""
    job = Job(ranks=8, seed=5, faults=(Fault(0, "data", 0.5), Fault(7, "data", 0.4)))
    cost = 'sum(rank:rankskew_gpus_lost:mean1m{{rank="{}"}})'.format
    share = close_to(f"{cost(0)} / {cost(7)}", 0.5 / 0.4, 0.05, last_scrape(job))

    assert_named(tmp_path, job, {(0, "data"), (7, "data")}, share)


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_half_of_the_group_can_be_late(tmp_path: Path, ranks: int) -> None:
    """The yardstick holds while half of the ranks are slow, on every node alike."""
    late = range(0, ranks, 2)
    faults = tuple(Fault(rank, "backward", 0.25) for rank in late)

    assert_named(
        tmp_path, Job(ranks=ranks, seed=5, faults=faults), {(rank, "backward") for rank in late}
    )


def test_steps_of_12_seconds_name_the_late_rank(tmp_path: Path) -> None:
    """Steps that are few in a minute are judged over five."""
    job = Job(busy_seconds=12, seconds=900, seed=5, faults=(Fault(1, "forward", 0.25),))
    truth = gpus_lost(simulate(job), last_scrape(job), window_seconds=300)
    cost = close_to("sum(rank:rankskew_gpus_lost:mean1m)", truth, 0.1, last_scrape(job))

    assert_named(tmp_path, job, {(1, "forward")}, cost)


def test_checkpoints_that_never_end_are_named_although_the_peers_have_no_such_stage(
    tmp_path: Path,
) -> None:
    """A stage that only the late rank has is where it is late, if that is no exception."""
    job = Job(seconds=600, faults=(Fault(0, "checkpoint", 8, every=40),))

    assert_named(tmp_path, job, {(0, "checkpoint")})


@pytest.mark.parametrize(("ranks", "busy_seconds"), [(2, 0.5), (8, 0.5), (8, 12.0)])
def test_single_checkpoint_wakes_nobody(tmp_path: Path, ranks: int, busy_seconds: float) -> None:
    """What is meant to happen now and then is no straggler."""
    end = 450 + 1.1 * busy_seconds  # A step and its communication.
    once = Fault(0, "checkpoint", 16, start_seconds=450, end_seconds=end)
    job = Job(ranks=ranks, seed=3, seconds=900, busy_seconds=busy_seconds, faults=(once,))

    assert_named(tmp_path, job, set())


def test_transient_straggler_clears(tmp_path: Path) -> None:
    """A rank that was late for half a minute is named, and no longer two minutes later."""
    fault = Fault(1, "data", 1.0, start_seconds=120, end_seconds=150)
    job = Job(seed=5, seconds=300, faults=(fault,))
    cleared = Expect("ALERTS", last_scrape(job), {})

    assert_named(tmp_path, job, {(1, "data")}, cleared)


def test_rank_that_changed_is_named_among_peers_that_always_differed(tmp_path: Path) -> None:
    """Where peers differ too much to say, a rank's own past does, for ten minutes."""
    fault = Fault(1, "backward", 0.15, start_seconds=560)
    job = Job(ranks=8, seed=1, seconds=1150, static_spread=0.1, faults=(fault,))
    still = Expect(
        'group by (rank) (ALERTS{alertstate="firing"})', last_scrape(job), {'{rank="1"}': 1}
    )

    assert_named(tmp_path, job, {(1, "backward")}, still)


def test_unequal_peer_groups_are_nobodys_fault(tmp_path: Path) -> None:
    """A heavier pipeline stage costs GPUs of the kind `group`, and names nobody."""
    job = Job(ranks=8, seed=5, group_work=(1.0, 1.3))
    end = last_scrape(job)
    # Half of the ranks wait 0.3 of a step for the other half.
    share = close_to(
        'sum(job_kind:rankskew_gpus_lost:mean1m{kind="group"})', 4 * 0.3 / 1.36, 0.1, end
    )

    assert_named(tmp_path, job, set(), share)


def test_late_rank_in_the_heavier_group_is_charged_beyond_the_groups(tmp_path: Path) -> None:
    """What unequal groups cost is taken off before a late rank is charged."""
    job = Job(ranks=8, seed=5, group_work=(1.0, 1.3), faults=(Fault(7, "data", 0.25),))
    end = last_scrape(job)
    # Seven ranks wait a quarter of a step longer.
    cost = close_to("sum(rank:rankskew_gpus_lost:mean1m)", 7 * 0.25 / 1.61, 0.1, end)

    assert_named(tmp_path, job, {(7, "data")}, cost)


def test_late_rank_in_a_lighter_group_costs_nothing(tmp_path: Path) -> None:
    """A rank that is late against its peers but paces nobody wakes nobody."""
    job = Job(ranks=4, seed=5, group_work=(1.0, 1.5), faults=(Fault(0, "data", 0.25),))
    end = last_scrape(job)
    truth = gpus_lost(simulate(job), end)
    group = close_to('sum(job_kind:rankskew_gpus_lost:mean1m{kind="group"})', truth, 0.1, end)

    assert_named(tmp_path, job, set(), group)


def test_unmeasured_wait_is_reported_as_not_judgeable(tmp_path: Path) -> None:
    """Without sync a late rank is not named, and a series says that nothing can be said."""
    job = Job(sync_measured=False, faults=(Fault(1, "data", 0.5),))
    reason = Expect(
        "job_reason:rankskew_not_judgeable:bool",
        last_scrape(job),
        {'job_reason:rankskew_not_judgeable:bool{job_id="j",reason="no_sync"}': 1},
    )

    assert_named(tmp_path, job, set(), reason)


def test_missing_rank_lowers_coverage_and_hides_no_straggler(tmp_path: Path) -> None:
    """The ranks that are seen are judged; that one is not seen is said."""
    job = Job(ranks=8, missing=1, faults=(Fault(2, "data", 0.25),))
    end = last_scrape(job)
    missing = 'job_reason:rankskew_not_judgeable:bool{job_id="j",reason="ranks_missing"}'

    assert_named(
        tmp_path,
        job,
        {(2, "data")},
        Expect(
            "job:rankskew_coverage:ratio", end, {'job:rankskew_coverage:ratio{job_id="j"}': 7 / 8}
        ),
        Expect("job_reason:rankskew_not_judgeable:bool", end, {missing: 1}),
    )


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_rotating_loss_is_counted_without_a_name(tmp_path: Path, ranks: int) -> None:
    """A loss with no stable leader is seen in full, as the kind `rotating`."""
    job = Job(ranks=ranks, seed=5, faults=(Fault(None, "data", 0.5),))
    end = last_scrape(job)
    truth = gpus_lost(simulate(job), end)
    rotating = 'sum(job_kind:rankskew_gpus_lost:mean1m{kind="rotating"})'

    assert_named(tmp_path, job, set(), close_to(rotating, truth, 0.1, end))


@pytest.mark.parametrize(
    "job",
    [
        Job(ranks=8, seed=6),
        Job(ranks=8, seed=6, faults=(Fault(1, "data", 0.25),)),
        Job(ranks=8, seed=6, faults=(Fault(None, "data", 0.5), Fault(1, "data", 0.25))),
        Job(ranks=8, seed=6, group_work=(1.0, 1.3), faults=(Fault(0, "data", 0.5),)),
        Job(ranks=8, seed=6, communication_ratio=1.0),
    ],
)
def test_kinds_add_up_to_all_waiting(tmp_path: Path, job: Job) -> None:
    """Every GPU that waits is charged to exactly one kind."""
    steps = simulate(job)
    end = last_scrape(job)
    window = [step for step in steps if end - 60 < step.end_seconds <= end]
    waited = sum(sum(step.sync) for step in window) / sum(
        step.busy[0] + step.sync[0] for step in window
    )
    kinds = "sum(job_kind:rankskew_gpus_lost:mean1m)"

    assert_rules(
        tmp_path,
        input_series(job, steps),
        [
            close_to(f"{kinds} / sum(job:rankskew_gpus_lost:mean1m)", 1, 0.001, end),
            close_to(kinds, waited, 0.05, end),
        ],
    )


@pytest.mark.parametrize(("scrape_seconds", "page_seconds"), [(15, 105), (5, 100), (1, 100)])
def test_page_comes_in_time(tmp_path: Path, scrape_seconds: float, page_seconds: float) -> None:
    """From the start of a job to the page: its warm-up, a minute, and two evaluations."""
    job = Job(seed=5, seconds=120, scrape_seconds=scrape_seconds, faults=(Fault(2, "data", 0.5),))
    firing = Expect(
        'group by (rank) (ALERTS{alertstate="firing"})', page_seconds, {'{rank="2"}': 1}
    )

    assert_named(tmp_path, job, {(2, "data")}, firing)
