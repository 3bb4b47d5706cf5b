"""Nodes that are late more often than chance allows are named, and no others."""

import math

import pytest

from fleet_simulator.month import HOURS, simulate
from rankskew.nodes import poisson
from rankskew.nodes.document import nodes_json, sentence
from rankskew.nodes.judge import NodeFinding, NodeVerdict, judged
from rankskew.nodes.model import LateHour, NodeIncident, NodePast, incidents
from rankskew.nodes.read import FleetPast
from rankskew.report.times import DAY_SECONDS, HOUR_SECONDS

END = HOURS * HOUR_SECONDS
DAYS = range(28)


def late(day: float, job: str = "", cause: str = "network", gpu: str = "") -> NodeIncident:
    """An hour in which two GPUs waited."""
    begin = day * DAY_SECONDS
    lost = 2 * HOUR_SECONDS
    return NodeIncident(job or f"job{day}", begin, begin + HOUR_SECONDS, {cause: lost}, {gpu: lost})


def node(name: str, *those: NodeIncident, hours: float = 160.0, **more: object) -> NodePast:
    """A node that jobs had for so many GPU-hours on each of 28 days."""
    used = {(day + 1) * DAY_SECONDS: hours for day in DAYS}
    return NodePast(name, incidents=those, used=used, jobs=30, **more)  # type: ignore[arg-type]


def of(pasts: list[NodePast], name: str) -> NodeFinding:
    """The verdict on one of a fleet, whose others are late once each."""
    others = [node(f"other{n}", late(n)) for n in range(30)]
    return next(each for each in judged([*pasts, *others]) if each.past.name == name)


@pytest.mark.parametrize("seed", [1, 2])
def test_lemons_of_a_month_come_first_and_no_healthy_node_is_accused(seed: int) -> None:
    """Every kind of them, among jobs that bring their own faults along."""
    month = simulate(seed, 0.0, nodes=64, lemons=4)
    found = judged(month.past(END).nodes)

    assert {each.past.name for each in found[:6]} >= set(month.lemons)
    called = {each.past.name for each in found if each.verdict is NodeVerdict.LEMON}
    assert called <= set(month.lemons)
    assert len(called) >= 3


def test_fleet_without_lemons_has_none() -> None:
    """Some of its nodes must be the worst."""
    found = judged(simulate(3, 0.0, nodes=64, lemons=0).past(END).nodes)

    assert NodeVerdict.LEMON not in {each.verdict for each in found}


def test_three_incidents_in_five_hours_are_uncertain() -> None:
    """However unlikely by themselves: what happens within hours has one reason."""
    used = {DAY_SECONDS: 40.0}
    those = [late(0.1, "a"), late(0.4, "b"), late(0.7, "c")]
    found = of([NodePast("new", incidents=those, used=used, jobs=3)], "new")

    assert found.verdict is NodeVerdict.UNCERTAIN
    assert found.chance < 1e-4


def test_many_hours_of_use_are_no_fault() -> None:
    """A node with eight times the use may have eight times the incidents."""
    busy = node("busy", *(late(n) for n in range(8)), hours=8 * 160.0)
    lazy = node("lazy", *(late(n) for n in range(8)))

    assert of([busy], "busy").verdict is NodeVerdict.FINE
    assert of([lazy], "lazy").verdict is NodeVerdict.LEMON


def test_job_that_is_late_wherever_it_runs_is_to_blame() -> None:
    """By its cause, or because no other job was late there."""
    own = [node("input", *(late(n, cause="input") for n in range(8)))]
    assert of(own, "input").verdict is NodeVerdict.FINE

    one = of([node("one", *(late(n, "llama") for n in range(8)))], "one")
    assert one.verdict is NodeVerdict.ONE_JOB
    assert sentence(one) == "one job only; job llama"


def test_driver_is_named_if_the_time_before_was_spared() -> None:
    """Eight incidents since the change, in half of the time; not if some were before."""
    drivers = (("550", (0.0, 14 * DAY_SECONDS)), ("560", (14 * DAY_SECONDS, 28 * DAY_SECONDS)))
    since = node("since", *(late(14 + n) for n in range(8)), drivers=drivers)
    both = node("both", *(late(10 + n) for n in range(8)), drivers=drivers)

    assert of([since], "since").driver == ("560", 14 * DAY_SECONDS)
    assert sentence(of([since], "since")).endswith("since driver 560 came on 1970-01-15 00:00")
    assert of([both], "both").driver is None


def test_gpu_is_named_if_nearly_all_was_lost_to_it() -> None:
    """And the GPUs of a node that is late with all of them are not listed again."""
    one = node("one", *(late(n, gpu="GPU-1") for n in range(8)))
    all_of_it = node("all", *(late(n, gpu=f"GPU-{2 + n % 4}") for n in range(8)))
    gpus = [
        node(
            f"GPU-{n}",
            *(each for each in (*one.incidents, *all_of_it.incidents) if uuid in each.gpus),
        )
        for n, uuid in ((n, f"GPU-{n}") for n in range(1, 6))
    ]
    others = [node(f"other{n}", late(n)) for n in range(30)]
    said = nodes_json(FleetPast((0.0, END), [one, all_of_it, *others], gpus))

    assert [each["gpu_uuid"] for each in said["nodes"][:2]] == [None, "GPU-1"]
    assert [each["name"] for each in said["gpus"]] == ["GPU-1"]


def test_hours_close_together_are_one_incident() -> None:
    """Of the same job; its causes and GPUs add up."""
    hours = [
        LateHour("a", 1 * HOUR_SECONDS, 10.0, "cpu", "GPU-1"),
        LateHour("a", 4 * HOUR_SECONDS, 20.0, "input", "GPU-1"),
        LateHour("a", 5 * HOUR_SECONDS, 30.0, "input", "GPU-2"),
        LateHour("a", 20 * HOUR_SECONDS, 40.0, "cpu", "GPU-1"),
        LateHour("b", 4 * HOUR_SECONDS, 50.0, "cpu", "GPU-1"),
    ]
    first, other, last = incidents(hours)

    assert (first.begin, first.end) == (0.0, 5 * HOUR_SECONDS)
    assert (first.causes, first.gpus) == ({"cpu": 10, "input": 50}, {"GPU-1": 30, "GPU-2": 30})
    assert first.is_of_the_job
    assert (other.job, other.gpu_seconds, last.gpu_seconds) == ("b", 50, 40)


def test_intervals_are_those_of_the_tables() -> None:
    """Garwood's: no event, one and ten (E. S. Pearson, H. O. Hartley, Biometrika Tables, 40)."""
    assert poisson.interval(0) == pytest.approx((0.0, 3.689), abs=1e-3)
    assert poisson.interval(1) == pytest.approx((0.0253, 5.572), abs=1e-3)
    assert poisson.interval(10) == pytest.approx((4.795, 18.390), abs=1e-3)


def test_tail_of_counts() -> None:
    """Against its definition."""
    assert poisson.at_least(2, 0.5) == pytest.approx(1 - 1.5 * math.exp(-0.5))
    assert poisson.at_most_before(1, 3, 0.5) == pytest.approx(0.5)
    assert poisson.at_least(3, 0.0) == 0.0
