"""The judge names exactly the ranks that are late: their stage, since when, and what they cost."""

from dataclasses import replace

import pytest

from rank_probe.judge.verdict import MILD, NODE, PERSISTENT
from rankskew.accounting.run import account, kinds
from tests.alerts.jobs import STAGE_SHARES, Fault, Job, Step, gpus_lost, simulate
from tests.rank_probe.judged import Named, judged, judged_steps, vectors


def late(*named: tuple[int, str], kind: str = PERSISTENT) -> Named:
    return {(rank, stage, kind) for rank, stage in named}


def caused(job: Job, steps: list[Step], rank: int, since: float, until: float) -> float:
    """The GPUs that waited for *rank* by the reference accounting."""
    account_of_rank = account(
        (vectors(job, step) for step in steps if since < step.end_seconds <= until),
        {each: f"g{job.group(each)}" for each in range(job.ranks)},
    )
    return kinds(account_of_rank, {rank}).persistent / account_of_rank.seconds


def saved(job: Job, steps: list[Step], since: float, until: float) -> float:
    """The GPUs that would not have waited without the job's faults: all but the late one do."""
    healthy = simulate(replace(job, faults=()))
    pairs = [
        (step, without)
        for step, without in zip(steps, healthy, strict=False)
        if since < step.end_seconds <= until
    ]
    longer = sum(max(step.busy) - max(without.busy) for step, without in pairs)
    return (job.ranks - 1) * longer / sum(step.busy[0] + step.sync[0] for step, _ in pairs)


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
def test_persistent_straggler_is_named_with_stage_onset_and_cost(
    ranks: int, stage: str, ratio: float
) -> None:
    """One late rank is named once, nobody else is, and its cost is right from the first on."""
    rank = ranks // 2
    job = Job(ranks=ranks, seed=ranks, faults=(Fault(rank, stage, ratio),))
    steps = simulate(job)
    found = judged_steps(job, steps)
    (incident,) = found.incidents

    assert found.named == late((rank, stage))
    assert incident.named < 50
    assert incident.cleared is None
    assert incident.onset < steps[10].end_seconds  # The first ones are not judged.
    assert incident.first.confidence > 1
    assert incident.first.ratio == pytest.approx(ratio, abs=0.02)
    assert incident.last.gpus[stage] > 0.75 * incident.last.gpus_lost
    for said, until in ((incident.first, incident.named), (incident.last, steps[-1].end_seconds)):
        since = incident.onset
        assert said.gpus_lost == pytest.approx(caused(job, steps, rank, since, until), rel=0.02)
        # Noise hides some of what the rank adds, and costs something without it.
        least, most = saved(job, steps, since, until), gpus_lost(steps, until, until - since)
        assert 0.99 * least < said.gpus_lost < 1.01 * most
        if ratio >= 0.25:
            assert said.gpus_lost == pytest.approx(least, rel=0.1)
            assert said.gpus_lost == pytest.approx(most, rel=0.1)


@pytest.mark.parametrize(("ratio", "ranks"), [(r, n) for r in (0.1, 0.5) for n in (2, 4, 8, 32)])
def test_rank_that_becomes_late_is_named_within_a_few_tens_of_steps(
    ratio: float, ranks: int
) -> None:
    """The onset is found to the second or two, and the first cost holds no healthy step."""
    fault = Fault(1, "forward", ratio, start_seconds=200)
    job = Job(ranks=ranks, seed=ranks, seconds=300, faults=(fault,))
    steps = simulate(job)
    found = judged_steps(job, steps)
    (incident,) = found.incidents

    assert found.named == late((1, "forward"))
    assert incident.onset == pytest.approx(200, abs=3)
    assert incident.named < 200 + 30 * (0.5 * 1.06 + 0.5 * ratio)
    truth = caused(job, steps, 1, 200.0, incident.named)
    assert incident.first.gpus_lost == pytest.approx(truth, rel=0.1)


HEALTHY = {
    "plain": Job(),
    "noisy steps": Job(stage_noise=0.2, common_noise=0.1, seconds=400),
    "noisy short steps": Job(busy_seconds=0.05, stage_noise=0.2, seconds=100),
    "identical ranks": Job(stage_noise=0, common_noise=0, static_spread=0),
    "rotating": Job(faults=(Fault(None, "data", 0.5),)),
    "slow communication": Job(communication_ratio=1.0),
    "slow together": Job(slow_together_seconds=120, seconds=300),
    "restart": Job(restart_seconds=120, seconds=300),
    "restart of short steps": Job(busy_seconds=0.05, restart_seconds=70, seconds=180),
    "steps of 7 seconds": Job(busy_seconds=7, seconds=600),
    "steps of 12 seconds": Job(busy_seconds=12, seconds=900),
    "noisy steps of 30 seconds": Job(busy_seconds=30, stage_noise=0.2, seconds=1500),
    "rotating steps of a minute": Job(
        busy_seconds=40, seconds=3600, faults=(Fault(None, "data", 0.5),)
    ),
    "one checkpoint": Job(faults=(Fault(0, "checkpoint", 16, start_seconds=150, end_seconds=151),)),
}


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("name", HEALTHY)
def test_nobody_is_named_without_a_straggler(name: str, ranks: int) -> None:
    """Noise, rotation, slow links, restarts and long steps are nobody's fault."""
    assert judged(replace(HEALTHY[name], ranks=ranks, seed=ranks)).named == set()


@pytest.mark.parametrize("busy_seconds", [0.05, 0.5])
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_static_spread_is_no_incident(ranks: int, busy_seconds: float) -> None:
    """Ranks that are up to 2 % off the mean for good are not late, however many steps show it."""
    faults = tuple(Fault(rank, "backward", 0.04 * rank / (ranks - 1)) for rank in range(ranks))
    job = Job(ranks=ranks, seed=3, busy_seconds=busy_seconds, faults=faults)

    assert judged(replace(job, seconds=60 if busy_seconds < 0.1 else 400)).named == set()


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_rank_at_the_threshold_does_not_flap(seed: int) -> None:
    """4 % late for 40 minutes is one incident at most, and then to the end."""
    job = Job(ranks=8, seed=seed, seconds=2400, faults=(Fault(5, "forward", 0.04),))
    incidents = judged(job, every_seconds=4.0).incidents

    assert [(each.rank, each.stage, each.cleared) for each in incidents] in (
        [],
        [(5, "forward", None)],
    )


def test_rank_that_is_a_little_late_is_mild() -> None:
    """3 % over peers who all are alike is told, but wakes nobody."""
    job = Job(ranks=16, seed=5, seconds=500, faults=(Fault(3, "data", 0.03),))
    (incident,) = judged(job).incidents

    assert (incident.rank, incident.stage, incident.kind) == (3, "data", MILD)
    assert incident.named > 300


@pytest.mark.parametrize("steps", [20, 10_000])
@pytest.mark.parametrize("stage", ["data", "backward", "optimizer"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_five_percent_late_for_twenty_steps_is_named(ranks: int, stage: str, steps: int) -> None:
    """Steps of two seconds as the accuracy benchmark has them, a twentieth late for 20 or more."""
    end = 125 + steps * 2.08
    fault = Fault(ranks // 2, stage, 0.053, start_seconds=125, end_seconds=end)
    job = Job(ranks=ranks, seed=1, busy_seconds=1.9, stage_noise=0.02, common_noise=0.01)
    found = judged(replace(job, seconds=400, faults=(fault,)))

    assert found.named == late((ranks // 2, stage))
    assert len(found.incidents) == 1


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_two_late_ranks_are_both_named(ranks: int) -> None:
    """Two ranks as late as each other are named, each with its own stage."""
    faults = (Fault(0, "data", 0.25), Fault(ranks - 1, "forward", 0.25))
    found = judged(Job(ranks=ranks, seed=5, faults=faults))

    assert found.named == late((0, "data"), (ranks - 1, "forward"))


def test_two_late_ranks_share_the_cost_by_their_excess() -> None:
    """Of two late ranks the later one alone is charged for what it has more than the other."""
    found = judged(Job(ranks=8, seed=5, faults=(Fault(0, "data", 0.5), Fault(7, "data", 0.4))))
    cost = {each.rank: each.gpus_lost for each in found.last.late}

    # Six wait 0.4 for two; then seven wait 0.1 for one.
    assert cost[0] / cost[7] == pytest.approx((6 * 0.4 / 2 + 7 * 0.1) / (6 * 0.4 / 2), rel=0.05)


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_half_of_the_group_can_be_late(ranks: int) -> None:
    """The yardstick holds while half of the ranks are slow, on every node alike."""
    names = [(rank, "backward") for rank in range(0, ranks, 2)]
    job = Job(ranks=ranks, seed=5, faults=tuple(Fault(*name, 0.25) for name in names))
    found = judged(job)

    assert found.named == late(*names)
    assert len(found.incidents) == len(names)


def test_late_rank_that_itself_waits_is_not_named() -> None:
    """Of two late ranks only the one that the job waits for is worth a word."""
    found = judged(Job(seed=5, faults=(Fault(0, "data", 0.5), Fault(3, "forward", 0.1))))

    assert found.named == late((0, "data"))


@pytest.mark.parametrize("start_seconds", [0.0, 150.0])
@pytest.mark.parametrize(("ranks", "ratio"), [(16, 0.25), (16, 0.1), (32, 0.1)])
def test_slow_node_is_named_as_one(ranks: int, ratio: float, start_seconds: float) -> None:
    """Ranks that are late because their whole node is are each of the kind `node`."""
    there = range(8, 16)
    faults = tuple(Fault(rank, "forward", ratio, start_seconds=start_seconds) for rank in there)
    found = judged(Job(ranks=ranks, seed=5, seconds=300, faults=faults))

    assert found.named == late(*((rank, "forward") for rank in there), kind=NODE)
    assert len(found.incidents) == len(there)


@pytest.mark.parametrize(("busy_seconds", "ratio"), [(12, 0.25), (45, 0.25), (50, 0.1)])
def test_long_steps_name_the_late_rank(busy_seconds: float, ratio: float) -> None:
    """Steps of 12 seconds or a minute are judged after about 25 of them, with their cost."""
    fault = Fault(1, "forward", ratio)
    job = Job(ranks=8, busy_seconds=busy_seconds, seconds=45 * busy_seconds, seed=5)
    steps = simulate(replace(job, faults=(fault,)))
    found = judged_steps(replace(job, faults=(fault,)), steps)
    (incident,) = found.incidents

    assert found.named == late((1, "forward"))
    assert incident.first.steps <= 25
    truth = caused(job, steps, 1, incident.onset, incident.named)
    assert incident.first.gpus_lost == pytest.approx(truth, rel=0.1)


def test_transient_straggler_clears() -> None:
    """A rank that was late for half a minute is one incident, over within a minute of its end."""
    fault = Fault(1, "data", 1.0, start_seconds=120, end_seconds=150)
    (incident,) = judged(Job(seed=5, seconds=400, faults=(fault,))).incidents

    assert (incident.rank, incident.stage) == (1, "data")
    assert incident.onset == pytest.approx(120, abs=3)
    assert incident.cleared == pytest.approx(180, abs=15)


def test_wandering_straggler_is_one_incident_a_minute() -> None:
    """A fault that moves on to the next rank each minute is that rank's until it moves on."""
    faults = tuple(
        Fault(turn, "data", 0.3, start_seconds=100 + 60 * turn, end_seconds=160 + 60 * turn)
        for turn in range(4)
    )
    incidents = judged(Job(ranks=8, seed=5, seconds=450, faults=faults)).incidents

    assert [(each.rank, each.stage) for each in incidents] == [(turn, "data") for turn in range(4)]
    for turn, incident in enumerate(incidents):
        assert incident.onset == pytest.approx(100 + 60 * turn, abs=3)
        assert incident.cleared == pytest.approx(190 + 60 * turn, abs=15)


def test_rank_that_changed_is_named_among_peers_that_always_differed() -> None:
    """Where peers differ too much to say, a rank's own past does, and the incident stays."""
    fault = Fault(1, "backward", 0.15, start_seconds=560)
    job = Job(ranks=8, seed=1, seconds=1150, static_spread=0.1, faults=(fault,))
    found = judged(job)
    (incident,) = found.incidents

    assert found.named == late((1, "backward"))
    assert incident.onset == pytest.approx(560, abs=3)
    assert incident.cleared is None


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("gap", [60, 120, 300])
def test_rank_that_is_late_again_is_a_new_incident(gap: int, seed: int) -> None:
    """It has its own onset and cost, and what was before is no pause."""
    again = 160 + gap
    first = Fault(3, "data", 0.3, start_seconds=100, end_seconds=160)
    job = Job(ranks=8, seed=seed, seconds=again + 100)
    job = replace(job, faults=(first, replace(first, start_seconds=again, end_seconds=1e9)))
    steps = simulate(job)
    found = judged_steps(job, steps)
    incident = found.incidents[-1]

    assert found.named == late((3, "data"))
    assert len(found.incidents) == 2
    assert incident.onset == pytest.approx(again, abs=3)
    truth = caused(job, steps, 3, again, incident.named)
    assert incident.first.gpus_lost == pytest.approx(truth, rel=0.1)


def test_run_of_late_steps_in_a_job_of_two_that_rotates_names_nobody() -> None:
    """Eight late steps in a row come by chance where each step strikes one of two ranks."""
    rotating = Fault(None, "forward", 0.5)
    job = Job(ranks=2, seed=3, seconds=1500, busy_seconds=1, stage_noise=0.01, faults=(rotating,))

    assert judged(job).named == set()


def test_noise_does_not_end_an_incident() -> None:
    """That one window of noisy steps is below the limit does not show that the rank is back."""
    fault = Fault(5, "forward", 0.1)
    job = Job(ranks=8, seed=2, seconds=1500, busy_seconds=1, stage_noise=0.2, faults=(fault,))
    (incident,) = judged(replace(job, common_noise=0.05)).incidents

    assert incident.cleared is None


def test_what_had_no_name_may_turn_out_to_be_data() -> None:
    """The probe of a rank that reads its own stream finds that out while the rank is late."""
    unnamed = Fault(1, "other", 0.5, end_seconds=60.0)
    named = Fault(1, "data", 0.5, start_seconds=60.0)
    job = Job(ranks=4, faults=(unnamed, named))
    before, after = judged_steps(job, simulate(job)).incidents

    assert (before.stage, after.stage) == ("other", "data")
    assert after.onset == pytest.approx(before.onset, abs=5)


def test_named_stage_of_an_incident_stays() -> None:
    """A rank whose lateness moves is one incident, told as it began."""
    before = Fault(1, "forward", 0.5, end_seconds=60.0)
    after = Fault(1, "data", 0.5, start_seconds=60.0)
    job = Job(ranks=4, faults=(before, after))
    found = judged_steps(job, simulate(job))
    (incident,) = found.incidents

    assert (incident.first.stage, incident.last.stage) == ("forward", "forward")
