"""What is made of a Prometheus' answers; tests/e2e/test_compare.py asks a real one."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from rank_probe.judge.verdict import LOST_KINDS
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus
from rankskew.compare.comparison import BLOCKS, Side
from rankskew.compare.from_prometheus import (
    COUNTERS,
    JOINED,
    MOST_RANKS,
    last_period,
    prometheus_side,
)
from tests.rankskew.client.servers import json_answer, serving

PERIOD = (1000.0, 1600.0)
STEP_SECONDS = 30.0
RANKS = 4
# Of all ranks together, at each border: two steps of half a second in each second.
STEADY: dict[str, Callable[[int], float]] = {
    "ranks": lambda border: RANKS,
    "copies": lambda border: RANKS,
    "steps": lambda border: 4000 + 60 * RANKS * border,
    "busy": lambda border: 1500 + 24.0 * RANKS * border,
    "sync": lambda border: 500 + 6.0 * RANKS * border,
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


def vector(*found: tuple[dict[str, str], float]) -> list[dict[str, Any]]:
    return [{"metric": labels, "value": [1600, str(value)]} for labels, value in found]


def matrix(*found: tuple[dict[str, str], Sequence[float], float]) -> list[dict[str, Any]]:
    return [
        {
            "metric": labels,
            "values": [[begin + STEP_SECONDS * at, str(v)] for at, v in enumerate(values)],
        }
        for labels, values, begin in found
    ]


@contextmanager
def answering(
    counters: Mapping[str, Callable[[int], float]],
    asked: list[str] | None = None,
    later: Mapping[str, Callable[[int], float]] | None = None,
    **vectors: list[dict[str, Any]],
) -> Iterator[Prometheus]:
    """Serve the *counters* at each border, and *vectors* to queries that have the name in them.

    After PERIOD it serves *later*, if there is that.
    """

    def result(form: Mapping[str, str]) -> list[dict[str, Any]]:
        query = form["query"]
        if "quantile by (stage)" in query:
            if asked is not None:
                asked.append(query)
            return matrix(({"stage": "forward"}, [0.3] * BLOCKS, float(form["start"])))
        if "step" in form:
            begin = float(form["start"])
            there = later if later is not None and begin >= PERIOD[1] else counters
            known = there.get(NAME_OF[NAMED.sub('rank=~"NAMED"', query)])
            return matrix(({}, [known(b) for b in range(BLOCKS + 1)], begin)) if known else []
        return next((found for name, found in vectors.items() if name in form["query"]), [])

    def answer(path: str, form: dict[str, str]) -> Any:
        kind = "matrix" if path.endswith("query_range") else "vector"
        data = {"resultType": kind, "result": result(form)}
        return json_answer({"status": "success", "data": data})

    with serving(answer) as url:
        yield Prometheus(url)


def side(
    counters: Mapping[str, Callable[[int], float]],
    asked: list[str] | None = None,
    **vectors: list[dict[str, Any]],
) -> Side:
    """Return what is made of *counters* and *vectors*; *asked* gets the queries for stages."""
    with answering(counters, asked, None, **vectors) as prometheus:
        return prometheus_side(prometheus, "llama", None, "After", PERIOD)


def test_counters_become_blocks_of_steps() -> None:
    """What all ranks gained between two borders, for one rank or for all."""
    found = side(STEADY)

    assert found.trouble is None
    assert (found.summary.ranks, len(found.blocks)) == (4, 20)
    for block in found.blocks:
        known = [block[name] for name in ("steps", "seconds", "gpu_seconds", "lost", "tokens")]
        assert known == [60, 30.0, 120.0, 24.0, 1e6]
        assert block["forward"] == pytest.approx(18.0)
        assert block["checkpoint"] == 0


def test_large_jobs_are_asked_for_the_stages_of_some_ranks() -> None:
    """The median of a few hundred ranks is that of all, and is found in time."""
    many = STEADY | {name: (lambda border: 4096) for name in ("ranks", "copies")}
    many |= {"steps": lambda border: 60 * 4096 * border}
    asked: list[str] = []
    side(many, asked)
    chosen = re.findall(r'rank=~"([\d|]+)"', asked[0])[0].split("|")

    assert len(set(chosen)) == MOST_RANKS
    assert {int(rank) % 8 for rank in chosen} == set(range(8))


def test_kinds_are_scaled_from_the_steps_that_were_joined() -> None:
    """Half of the seconds were joined, so each kind is twice what was counted; they add up."""
    for block in side(STEADY).blocks:
        assert [block[kind] for kind in LOST_KINDS] == [0.0, 12.0, 6.0, 6.0]


def test_without_a_join_the_kinds_are_unknown() -> None:
    """The loss is known from the ranks' own waits, its kinds are not."""
    found = side({name: at for name, at in STEADY.items() if name not in ("joined", "caused")})

    assert {block["lost"] for block in found.blocks} == {24.0}
    assert not any(kind in block for block in found.blocks for kind in LOST_KINDS)


def test_ranks_known_twice_count_once() -> None:
    twice = {name: (lambda b, at=at: 2 * at(b)) for name, at in STEADY.items() if name != "ranks"}
    found, single = side(twice | {"ranks": STEADY["ranks"]}), side(STEADY)

    assert found.summary.ranks == 4
    assert found.blocks == single.blocks


def test_blocks_without_a_step_are_joined_to_the_next() -> None:
    """If Prometheus scrapes every 40 s, a block of 30 s may see nothing new."""
    seen = {
        name: (lambda border, at=at: at(border * 30 // 40 * 4 // 3)) if name != "ranks" else at
        for name, at in STEADY.items()
    }
    found = side(seen)

    assert len(found.blocks) == 15
    assert found.summary.steps == 60 * 20
    assert sum(block["forward"] for block in found.blocks) == pytest.approx(0.3 * 1200)


RESTART = "After has a restart in it, or ranks that come and go; compare"


@pytest.mark.parametrize(
    ("counters", "vectors", "trouble"),
    [
        pytest.param(STEADY, {"resets": vector(({}, 1.0))}, RESTART, id="reset"),
        pytest.param(
            STEADY | {"copies": lambda border: RANKS + (border > 9)}, {}, RESTART, id="ranks join"
        ),
        pytest.param(
            STEADY | {"steps": lambda border: 60 * RANKS * border if border else 9000},
            *({}, RESTART),
            id="begun again",
        ),
        # No step for longer than a minute and ten steps.
        pytest.param(STEADY, {"last_step_age": vector(({}, 59.0))}, "None", id="no standstill"),
        pytest.param(
            STEADY,
            {"last_step_age": vector(({}, 95.0))},
            "After has 95 s without a step: the job stood still;",
            id="standstill",
        ),
        pytest.param({}, {}, "After is not wholly recorded: this Prometheus lacks", id="no series"),
    ],
)
def test_what_is_no_undisturbed_run_is_a_trouble(
    counters: Mapping[str, Callable[[int], float]], vectors: dict[str, Any], trouble: str
) -> None:
    assert str(side(counters, **vectors).trouble).startswith(trouble)


def test_late_ranks_have_their_cost() -> None:
    """Those that were late for a tenth of the period, by the stage and kind they had longest."""
    seen = [
        ({"rank": "3", "stage": "data", "kind": "persistent", "instance": "a:1"}, 30.0),
        ({"rank": "3", "stage": "forward", "kind": "persistent", "instance": "a:1"}, 8.0),
        ({"rank": "5", "stage": "data", "kind": "persistent", "instance": "a:1"}, 3.0),
        ({"rank": "7", "stage": "data", "kind": "mild", "instance": "a:1"}, 30.0),
    ]
    found = side(
        STEADY,
        count_over_time=vector(*seen),
        rankskew_wait_caused_seconds_total=vector(({"rank": "3"}, 1.5)),
    )

    assert found.late == {(3, "data"): 1.5}
    # A job that nobody judged has none to compare, which is not the same as nobody late.
    assert side(STEADY).late is None


def test_the_last_period_of_a_job_ends_with_its_last_step() -> None:
    """A job that is over is compared as it was at its end; one that is none or two is refused."""
    with answering({}, last_step_timestamp=vector(({}, 5000.0))) as prometheus:
        assert last_period(prometheus, "old", None, 600.0) == (4400.0, 5000.0)
    two = vector(({"cluster": "b"}, 5000.0), ({"cluster": "a"}, 4000.0))
    for found, problem in (
        ([], "no step of a job 'old'"),
        (two, "Several clusters have a job 'old'; give --cluster: a, b"),
    ):
        with (
            answering({}, last_step_timestamp=found) as prometheus,
            pytest.raises(Trouble, match=problem),
        ):
            last_period(prometheus, "old", None, 600.0)
