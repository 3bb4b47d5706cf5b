"""`rankskew compare`: what A..B means, what is made of a Prometheus' answers, and what that says.

tests/e2e/test_history.py asks a real one.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import Any

import pytest

from exporter.errors import UsageError
from exporter.scrape.levels import LEVELS, PARTS
from rank_probe.judge.verdict import WAIT_KINDS
from rank_probe.wire.stages import STAGES
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus
from rankskew.commands.compare import comparison_document, run
from rankskew.compare.choose import compare_recorded, periods
from rankskew.compare.comparison import BLOCKS, ComparedSide, Side, compare
from rankskew.compare.from_prometheus import (
    COUNTERS,
    JOINED,
    MOST_RANKS,
    last_period,
    prometheus_side,
)
from rankskew.compare.statistics import Estimate, Interval, difference, estimate, ratio, t_quantile
from rankskew.render import render
from tests.printed import assert_golden
from tests.rankskew.fake_prometheus import ALWAYS, FakePrometheus, Written

Counters = Mapping[str, Callable[[int], float]]
Vector = list[tuple[dict[str, str], float]]

PERIOD = (1000.0, 1600.0)
STEP_SECONDS = 30.0
RANKS = 4
# Of all ranks together, at each border: two steps of half a second in each second.
STEADY: dict[str, Callable[[int], float]] = {
    "ranks": lambda border: RANKS,
    "copies": lambda border: RANKS,
    "steps": lambda border: 4000 + 60 * RANKS * border,
    "busy": lambda border: 1500 + 24.0 * RANKS * border,
    "lost": lambda border: 500 + 6.0 * RANKS * border,
    "tokens": lambda border: 1e6 * border,
    "joined": lambda border: 15.0 * RANKS * border,
    "group": lambda border: 0.0,
    "caused": lambda border: 9.0 * border,
    "persistent": lambda border: 6.0 * border,
}
# What is asked at the borders, for this job and any named ranks.
NAME_OF = {
    text.replace("JOINED", JOINED).replace("WHERE", 'job_id="llama"'): name
    for name, text in COUNTERS.items()
}
NAMED = re.compile('rank=~"[^"]*"')


def answering(
    before: Counters, vectors: Mapping[str, Vector], after: Counters | None = None
) -> FakePrometheus:
    """Hold the counters at each border, up to PERIOD's end and *after* it.

    Queries that have the name of one of *vectors* in them are answered with that.
    """

    def held(form: dict[str, str]) -> Iterator[Written]:
        query, begin = form["query"], float(form.get("start", "0"))
        if "quantile by (stage)" in query:
            yield {"stage": "forward"}, ALWAYS, 0.3
        elif "step" in form:
            counters = before if after is None or begin < PERIOD[1] else after
            if known := counters.get(NAME_OF[NAMED.sub('rank=~"NAMED"', query)]):
                yield {}, ALWAYS, lambda at: known(round((at - begin) / STEP_SECONDS))
        else:
            found = next((found for name, found in vectors.items() if name in query), [])
            yield from ((labels, ALWAYS, value) for labels, value in found)

    return FakePrometheus(held)


def recorded_side(counters: Counters, **vectors: Vector) -> Side:
    """Return what is made of *counters* and *vectors*."""
    with answering(counters, vectors).serve() as url:
        return prometheus_side(Prometheus(url), "llama", None, "After", PERIOD)


# ---- What A..B says ------------------------------------------------------------------------------


NOW = datetime(2026, 3, 4, 15, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("asked", "before", "after"),
    [
        # A change between A and B is in neither window.
        (("14:05", "14:20"), (-3900, -3300), (-2400, -1800)),
        # What has not happened yet is cut off.
        (("-30m", "-5m"), (-2400, -1800), (-300, 0)),
        # Now is the last window, but it does not begin before A.
        (("-30m", "now"), (-2400, -1800), (-600, 0)),
        (("-5m", "now"), (-900, -300), (-300, 0)),
        (("13:50/14:05", "14:20/-10m"), (-4200, -3300), (-2400, -600)),
    ],
)
def test_windows_end_with_a_and_begin_with_b_and_periods_stay(
    asked: tuple[str, str], before: tuple[float, float], after: tuple[float, float]
) -> None:
    """Times are relative to now, in seconds."""
    wanted = [(NOW + begin, NOW + end) for begin, end in (before, after)]

    assert list(periods(asked, 600, NOW)) == wanted


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("14:05", r"is not A\.\.B, such as 14:05\.\.14:20"),
        ("14:05..", r"is not A\.\.B"),
        ("a..b..c", r"is not A\.\.B"),
        ("14:20..14:05", "begins before"),
        ("14:05/14:00..14:20", "ends before it begins"),
        ("-20m..2026-03-04T15:30", "later than all data"),
        ("-20m..-10m/2026-03-04T15:30", "later than all data"),
        ("yesterday..now", "'yesterday' is not a time; give 14:05"),
        ("25:00..now", "is not a time"),
        ("-5..now", "is not a time"),
    ],
)
def test_bad_periods_are_refused_in_a_sentence(asked: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare_recorded(Prometheus("http://127.0.0.1:1"), asked, 600, NOW)


# ---- The job -------------------------------------------------------------------------------------


A, B = {"job_id": "a"}, {"job_id": "b"}
X, Y = {"cluster": "x"}, {"cluster": "y"}


@pytest.mark.parametrize(
    ("jobs", "job_id", "message"),
    [
        ([], None, "No job ran at the end of both periods"),
        ([], "x", "No job 'x' ran at the end of both periods"),
        ([A, B], None, "Give --job; these ran in both periods: a, b"),
        ([A | X, A | Y], "a", "Several clusters have a job 'a'; give --cluster: x, y"),
    ],
)
def test_a_job_that_is_none_or_many_is_refused(
    jobs: list[dict[str, str]], job_id: str | None, message: str
) -> None:
    known: Vector = [(job, 1.0) for job in jobs]
    with answering({}, {"group by (cluster, job_id)": known}).serve() as url:
        prometheus = Prometheus(url)
        with pytest.raises(Trouble, match=message):
            compare_recorded(prometheus, "1000..2000", 600, now=3000, job_id=job_id)
        with pytest.raises(UsageError, match="takes two jobs"):
            compare_recorded(prometheus, "job:old..-5m", 600, now=3000, job_id=job_id)


def test_the_last_period_of_a_job_ends_with_its_last_step() -> None:
    """A job that is over is compared as it was at its end; one that is none or two is refused."""

    def last(*found: tuple[dict[str, str], float]) -> tuple[float, float]:
        with answering({}, {"last_step_timestamp": list(found)}).serve() as url:
            return last_period(Prometheus(url), "old", None, 600.0)

    assert last(({}, 5000.0)) == (4400.0, 5000.0)
    with pytest.raises(Trouble, match="no step of a job 'old'"):
        last()
    with pytest.raises(Trouble, match="Several clusters have a job 'old'; give --cluster: a, b"):
        last(({"cluster": "b"}, 5000.0), ({"cluster": "a"}, 4000.0))


# ---- What is recorded of a side ------------------------------------------------------------------


def test_counters_become_blocks_of_steps() -> None:
    """What all ranks gained between two borders, for one rank or for all; known twice counts once.

    Half of the seconds were joined, so each kind is twice what was counted; they add up.
    """
    twice = {name: (lambda b, at=at: 2 * at(b)) for name, at in STEADY.items() if name != "ranks"}
    found = recorded_side(STEADY)

    assert found.trouble is None
    assert (found.summary.ranks, len(found.blocks)) == (4, 20)
    for block in found.blocks:
        known = [block[name] for name in ("steps", "seconds", "gpu_seconds", "lost", "tokens")]
        assert known == [60, 30.0, 120.0, 24.0, 1e6]
        assert [block[kind] for kind in WAIT_KINDS] == [0.0, 12.0, 6.0, 6.0]
        assert block["forward"] == pytest.approx(18.0)
        assert block["checkpoint"] == 0
    assert recorded_side(twice | {"ranks": STEADY["ranks"]}) == found


def test_counters_are_shown_by_every_exporter() -> None:
    """Whatever its --series.detail is."""
    assert set(re.findall(r"rankskew_\w+", "".join(COUNTERS.values()))) <= {*LEVELS, *PARTS}


def test_without_a_join_the_loss_is_known_and_its_kinds_are_not() -> None:
    """From the ranks' own waits."""
    known = {name: STEADY[name] for name in STEADY.keys() - {"joined", "caused"}}
    for block in recorded_side(known).blocks:
        assert block["lost"] == 24.0
        assert not block.keys() & {*WAIT_KINDS}


def test_large_jobs_are_asked_for_the_stages_of_some_ranks() -> None:
    """The median of a few hundred ranks is that of all, and is found in time."""
    many = STEADY | {name: (lambda border: 4096) for name in ("ranks", "copies")}
    many |= {"steps": lambda border: 60 * 4096 * border}
    prometheus = answering(many, {})
    with prometheus.serve() as url:
        prometheus_side(Prometheus(url), "llama", None, "After", PERIOD)
    queries = [form["query"] for form in prometheus.asked]
    (stages,) = [query for query in queries if "quantile by (stage)" in query]
    chosen = re.findall(r'rank=~"([\d|]+)"', stages)[0].split("|")

    assert len(set(chosen)) == MOST_RANKS
    assert {int(rank) % 8 for rank in chosen} == set(range(8))


def test_blocks_without_a_step_are_joined_to_the_next() -> None:
    """If Prometheus scrapes every 40 s, a block of 30 s may see nothing new."""
    seen = {
        name: (lambda border, at=at: at(border * 30 // 40 * 4 // 3)) if name != "ranks" else at
        for name, at in STEADY.items()
    }
    found = recorded_side(seen)

    assert len(found.blocks) == 15
    assert found.summary.steps == 60 * 20
    assert sum(block["forward"] for block in found.blocks) == pytest.approx(0.3 * 1200)


OF_TEN_SECONDS = STEADY | {"steps": lambda border: 4000 + 3 * RANKS * border}
RESTART = "After has a restart in it, or ranks that come and go; compare"


@pytest.mark.parametrize(
    ("counters", "vectors", "trouble"),
    [
        (STEADY, {"resets": [({}, 1.0)]}, RESTART),
        (STEADY | {"copies": lambda border: RANKS + (border > 9)}, {}, RESTART),
        (STEADY | {"steps": lambda border: 60 * RANKS * border or 9000}, {}, RESTART),
        # No step for longer than a minute and ten steps.
        (STEADY, {"last_step_age": [({}, 59.0)]}, "None"),
        (STEADY, {"last_step_age": [({}, 95.0)]}, "After has 95 s without a step: the job stood"),
        (OF_TEN_SECONDS, {"last_step_age": [({}, 98.0)]}, "None"),
        (OF_TEN_SECONDS, {"last_step_age": [({}, 102.0)]}, "After has 102 s without a step"),
        ({}, {}, "After is not wholly recorded: this Prometheus lacks"),
    ],
)
def test_what_is_no_undisturbed_run_is_a_trouble(
    counters: Counters, vectors: dict[str, Vector], trouble: str
) -> None:
    assert str(recorded_side(counters, **vectors).trouble).startswith(trouble)


def test_late_ranks_have_their_cost() -> None:
    """Those that were late for a tenth of the period, by the stage and kind they had longest."""
    seen = [
        ({"rank": "3", "stage": "data", "kind": "persistent", "instance": "a:1"}, 30.0),
        ({"rank": "3", "stage": "forward", "kind": "persistent", "instance": "a:1"}, 8.0),
        ({"rank": "5", "stage": "data", "kind": "persistent", "instance": "a:1"}, 3.0),
        ({"rank": "7", "stage": "data", "kind": "mild", "instance": "a:1"}, 30.0),
    ]
    found = recorded_side(
        STEADY, count_over_time=seen, rankskew_wait_caused_seconds_total=[({"rank": "3"}, 1.5)]
    )

    assert found.late == {(3, "data"): 1.5}
    # A job that nobody judged has none to compare, which is not the same as nobody late.
    assert recorded_side(STEADY).late is None


# ---- The command ---------------------------------------------------------------------------------


NOWHERE = "http://127.0.0.1:1"
SIDES = "1000/1600..1700/2300"
# Steps that need a sixth less.
FASTER = STEADY | {"busy": lambda border: 1500 + 19.0 * RANKS * border}
FOUND: dict[str, Vector] = {
    "group by": [({"job_id": "llama", "rank": "0"}, 1)],
    "count_over_time": [
        ({"rank": "3", "stage": "data", "kind": "persistent", "instance": "a:1"}, 40.0)
    ],
    "rankskew_wait_caused_seconds_total": [({"rank": "3"}, 1.5)],
}
Captured = pytest.CaptureFixture[str]


def test_verdict_comes_first_and_is_the_status(capsys: Captured) -> None:
    """In words, and all of it as JSON."""
    with answering(STEADY, FOUND, FASTER).serve() as url:
        assert run([SIDES, "--prometheus", url]) == 0
        text = capsys.readouterr().out
        assert run([SIDES, "--prometheus", url, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    with answering(FASTER, FOUND, STEADY).serve() as url:
        assert run([SIDES, "--prometheus", url, "--markdown"]) == 1

    assert text.startswith("job llama: improved\nSteps take 0.833 times")
    assert capsys.readouterr().out.startswith("# job llama: worse\n")
    assert (said["verdict"], said["cost"]["name"]) == ("improved", "step")
    assert (said["before"]["ranks"], said["before"]["begin"]) == (RANKS, 1000)
    assert said["cost"]["ratio"]["low"] <= said["cost"]["ratio"]["value"] < 1
    assert [tuple(each.values()) for each in said["late"]] == [(3, "data", "both", 1.5, 1.5)]


def test_what_cannot_be_told_exits_2(capsys: Captured) -> None:
    """Too few steps, or a Prometheus that is silent."""
    few = STEADY | {"steps": lambda border: 4000 + RANKS * border}
    with answering(few, FOUND).serve() as url:
        assert run([SIDES, "--prometheus", url, "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert run([SIDES, "--prometheus", NOWHERE, "--json"]) == 2
    silent = capsys.readouterr()

    assert said["verdict"] == "cannot_tell"
    assert "has only 20 steps; at least 150 are needed" in said["why"]
    assert silent.err.startswith(f"rankskew: {NOWHERE} does not answer: ")
    assert json.loads(silent.out)["verdict"] == "cannot_tell"


# ---- What two sides come to ----------------------------------------------------------------------


def side(
    step_seconds: float = 0.5,
    noise: float = 0.01,
    steps: int = 400,
    blocks: int = BLOCKS,
    ranks: int = 8,
    seed: int = 1,
    stages: dict[str, float] | None = None,
    lost_gpus: float | None = None,
    tokens_a_step: float | None = None,
    samples_a_step: float | None = None,
    slowdown: float | None = None,
    **more: Any,
) -> Side:
    """Return a side whose blocks vary by *noise*, a share, each in its own way."""
    draw = random.Random(seed)
    of_step = {
        "tokens": tokens_a_step,
        "samples": samples_a_step,
        **(dict.fromkeys(STAGES, 0.0) | stages if stages else {}),
    }
    found = []
    for _ in range(blocks):
        each = steps / blocks
        seconds = each * step_seconds * (1 + draw.gauss(0, noise))
        block = {"steps": each, "seconds": seconds, "gpu_seconds": seconds * ranks}
        block |= {name: each * value for name, value in of_step.items() if value is not None}
        if lost_gpus is not None:
            block |= dict.fromkeys(("lost", "persistent"), lost_gpus * seconds)
        found.append(block)
    known: dict[str, Any] = {"what": "Before (steps 1 to 2)", "late": {}}
    summary = ComparedSide("llama", 0.0, 1.0, ranks, float(steps), blocks, slowdown)
    return Side(summary=summary, blocks=found, **(known | more))


def drifting(one: Side, by: float) -> Side:
    """Return the side with steps that get longer from block to block."""
    blocks = [
        {**block, "seconds": block["seconds"] * (1 + number * by)}
        for number, block in enumerate(one.blocks)
    ]
    return replace(one, blocks=blocks)


LATE = {(3, "data"): 0.2, (6, "data"): 1.6, (7, "data"): None}
MOVED = {(3, "data"): 0.3, (6, "forward"): 0.5}
SAVES: dict[str, Any] = {"stages": {"forward": 0.5, "checkpoint": 0.05}, "tokens_a_step": 1000}
GAIN = (
    side(0.611, noise=0, stages={"data": 0.3}, late={(6, "data"): 1.65}, lost_gpus=2.3),
    side(0.501, noise=0.02, stages={"data": 0.2}, lost_gpus=0.5),
)
STORIES: dict[str, tuple[Side, Side]] = {
    "improved": GAIN,
    "worse": (side(0.5), side(0.52, seed=2)),
    "no worse": (side(0.5), side(0.5, seed=2)),
    # A drift that is mere rounding.
    "steady": (drifting(side(0.5, noise=0), 1e-6), side(0.4, noise=0)),
    "throughput": (
        side(1.5, noise=0, tokens_a_step=1000, slowdown=1.2),
        side(0.5, noise=0, tokens_a_step=2000, slowdown=1.0, stages={"checkpoint": 0.1}),
    ),
    # Twice the GPUs train twice the samples.
    "twice the ranks": (
        side(0.5, samples_a_step=64, ranks=8),
        side(0.5, samples_a_step=128, ranks=16, seed=2),
    ),
    # On both sides it belongs to what is compared.
    "a checkpoint on one side": (
        side(0.5, stages={"forward": 0.5}, tokens_a_step=1000),
        side(0.55, seed=2, **SAVES),
    ),
    "a checkpoint on both sides": (side(0.55, seed=2, **SAVES), side(0.55, seed=3, **SAVES)),
    # One is gone, one is new, one stays; one costs nobody knows what.
    "late ranks": (side(late=LATE), side(late=MOVED, seed=2)),
    # No judge on one side is not the same as nobody late.
    "not judged": (side(late=None), side()),
    "in doubt": (side(0.5, noise=0.2), side(0.5, noise=0.2, seed=2)),
    "few steps": (side(3.0, steps=40), side(3.0, seed=2)),
    # As of a Prometheus that scrapes seldom.
    "few readings": (side(), side(blocks=10)),
    "a restart": (side(), side(trouble="After (x) has a restart.")),
    "a drift": (side(), drifting(side(), 0.1)),
    "nothing to compare": (side(ranks=8), side(ranks=16, seed=2)),
    "noise": (side(0.5, noise=3.0), side(0.5)),
}


def test_stories_are_the_golden_ones() -> None:
    """A verdict is that of the whole interval; none says why, and what would help."""
    texts = {
        name: render(comparison_document(compare(before, after)))
        for name, (before, after) in STORIES.items()
    }
    markdown = render(comparison_document(compare(*GAIN)), markdown=True)
    assert_golden("compare", texts | {"Markdown": markdown})


# ---- The statistics ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "published"), [(3, 3.182), (5, 2.571), (18, 2.101), (120, 1.980), (inf, 1.960)]
)
def test_quantiles_of_t_are_those_of_published_tables(freedom: float, published: float) -> None:
    assert t_quantile(freedom) == pytest.approx(published, abs=0.004)


def test_mean_of_blocks_has_the_variance_of_dependent_ones() -> None:
    """With equal blocks that do not depend on each other it is the textbook s²/k.

    Twenty blocks in pairs have a correlation of 0.05 in the sample, corrected for its bias of
    0.125. The mean counts every unit once.
    """
    apart = estimate([1.0, 4.0, 2.0, 3.0], [1, 1, 1, 1])
    pairs = estimate([1.0, 1.0, 0.0, 0.0] * 5, [1] * 20)

    assert apart.variance == pytest.approx((1.5**2 + 1.5**2 + 0.5**2 + 0.5**2) / 3 / 4)
    assert apart.freedom == pytest.approx(3)
    assert pairs.freedom == pytest.approx(20 * (1 - 0.125) / (1 + 0.125) - 1)
    assert pairs.variance == pytest.approx(5 / 19 / 20 * (1 + 0.125) / (1 - 0.125))
    assert estimate([10.0, 40.0], [10, 20]).mean == pytest.approx(50 / 30)


def test_ratio_is_fiellers_interval() -> None:
    """The ends are the ratios at which Welch's test just rejects.

    If the mean before is not certainly above 0, no ratio is bounded.
    """
    before, after = Estimate(2.0, 0.01, 10), Estimate(1.0, 0.02, 12)
    found = ratio(after, before)

    assert found is not None
    assert found.value == 0.5
    freedom = (0.02 + 0.25 * 0.01) ** 2 / (0.02**2 / 12 + (0.25 * 0.01) ** 2 / 10)
    for end in (found.low, found.high):
        distance = abs(after.mean - end * before.mean)
        spread = (after.variance + end**2 * before.variance) ** 0.5
        assert distance / spread == pytest.approx(t_quantile(freedom))
    assert ratio(Estimate(1.0, 0.1, 9), Estimate(0.1, 0.1, 9)) is None
    assert ratio(Estimate(1.0, 0.0, 9), Estimate(0.0, 0.0, 9)) is None
    # What takes half the time has twice the rate.
    assert Interval(0.5, 0.4, 0.8).inverse == Interval(2.0, 1.25, 2.5)


def test_difference_is_welchs_interval() -> None:
    """Equal variances and sizes give the usual two-sample interval; two constants have none."""
    found = difference(Estimate(3.0, 0.02, 9), Estimate(1.0, 0.02, 9))
    before, after = estimate([2.0] * 20, [1] * 20), estimate([3.0] * 20, [1] * 20)

    assert found.value == 2.0
    assert found.high - found.value == pytest.approx(2.101 * 0.2, abs=0.001)
    assert difference(after, before) == Interval(1.0, 1.0, 1.0)
    assert ratio(after, before) == Interval(1.5, 1.5, 1.5)
