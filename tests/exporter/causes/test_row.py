"""A row's sentence has both figures, and leaves out what is not known."""

import pytest

from exporter.causes.case import Case, case_of
from exporter.causes.explain import ROWS
from exporter.causes.model import SLEEP, Evidence, Figures, Lateness
from exporter.causes.row import Kind, Row
from exporter.causes.shares import is_in_state, slower, waits
from rank_probe.judge.verdict import PERSISTENT
from rank_probe.wire.figures import FIGURES
from rank_probe.wire.stages import STAGES
from tests.exporter.causes.planted import evidence, lateness, peers

EXTRA = {"data": 0.35}
CLOCK = Row(
    cause="slow",
    kind=Kind.AMOUNT,
    figure="sm_clock_hertz",
    share=slower(0.02),
    lowers=True,
    says="its clock is {own}[, its peers' {peers}][: {fact}[, {temperature}]]",
    first_action="",
)
ASLEEP = Row(
    cause="code",
    detail=SLEEP,
    kind=Kind.AMOUNT,
    states=frozenset({SLEEP}),
    share=is_in_state,
    says="it sleeps[ in `{place}`] for {time}",
    first_action="",
)


def case(changes: Figures, facts: dict[str, str] | None = None, place: str = "") -> Case:
    """Return a rank that is late in data, where it sleeps."""
    states = [("data", SLEEP, 1.0, place)]
    found = case_of(lateness(EXTRA), evidence(EXTRA, changes, states, (), facts), peers())
    assert found is not None
    return found


def test_sentence_has_both_figures() -> None:
    """On one scale, with what the figure is of; for a figure that faults lower, the upper third."""
    hot = {"sm_clock_hertz": 1.41e9, "gpu_temperature_celsius": 87.0}
    said = CLOCK.sentence(case(hot, {"sm_clock_hertz": "too hot"}))

    assert said == "its clock is 1.41 GHz, its peers' 1.96: too hot, 87 °C"
    assert CLOCK.peers_value(case(hot)) == pytest.approx(1.95e9 * 1.005)


def test_reason_of_the_driver_may_stand_with_the_throttling() -> None:
    """It says why the clock is low."""
    said = CLOCK.sentence(case({"sm_clock_hertz": 1e9}, {"gpu_throttled_ratio": "power cap"}))

    assert said == "its clock is 1.00 GHz, its peers' 1.96: power cap, 60 °C"


def test_what_is_not_known_is_left_out() -> None:
    """Peers, facts, lines of code. What is said is not read again as a pattern."""
    late = Lateness("forward", PERSISTENT, 0.1, {})
    alone = case_of(late, Evidence({"sm_clock_hertz": 1e9}), None)
    assert alone is not None

    assert CLOCK.sentence(alone) == "its clock is 1.00 GHz"
    assert CLOCK.peers_value(alone) is None
    assert ASLEEP.sentence(case({})) == "it sleeps for 215 ms a step"
    assert ASLEEP.sentence(case({}, place="f[{own}] (a.py:1)")) == (
        "it sleeps in `f[{own}] (a.py:1)` for 215 ms a step"
    )


def test_state_is_about_the_time_in_its_stage() -> None:
    """So it has both figures too."""
    found = case({})

    assert ASLEEP.about(found) == "data_seconds"
    assert found.own("data_seconds") == pytest.approx(0.215)
    assert ASLEEP.peers_value(found) == pytest.approx(0.04 * 0.995)


def test_without_times_a_state_has_a_share() -> None:
    """Nobody measured how long a step takes."""
    late = Lateness("data", PERSISTENT, 0.5, {"data": 1.0})
    found = case_of(late, Evidence({}, evidence(EXTRA, {}, [("data", SLEEP, 0.8, "")]).states), {})
    assert found is not None

    assert ASLEEP.sentence(found) == "it sleeps for 80 % of its time"
    assert ASLEEP.about(found) == ""


def test_figure_of_healthy_peers_need_not_be_known() -> None:
    """For faults that a healthy rank does not have."""
    row = Row(
        cause="gc",
        kind=Kind.WORK,
        figure="gc_ratio",
        share=waits(0.01),
        healthy=0.0,
        says="{own}[, its peers {peers}]",
        first_action="",
    )
    alone = case_of(lateness(EXTRA), Evidence({"gc_ratio": 0.2}), None)
    assert alone is not None

    assert row.sentence(alone) == "20 %, its peers 0 %"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.cause}-{row.detail}-{row.figure}")
def test_row_makes_sense(row: Row) -> None:
    """Names of figures and stages exist; the first action says where, and is no book."""
    assert row.figure in ("", *FIGURES)
    assert set(row.stages) <= set(STAGES)
    assert row.proof <= row.states
    assert 0 < len(row.first_action) <= 110
    assert any(word in row.first_action for word in ("PID", "UUID", "NODE", "print "))
    assert row.says[0].islower() or row.says[0] == "{"
    assert row.says.count("[") == row.says.count("]")
    assert row.first_action.count("`") % 2 == 0
