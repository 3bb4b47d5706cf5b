"""A row's sentence has both figures as people write them, and leaves out what is not known."""

import pytest

from exporter.causes.case import Case
from exporter.causes.explain import ROWS
from exporter.causes.model import SLEEP, Evidence, Figures, Lateness
from exporter.causes.row import CauseRow, Certainty
from exporter.causes.shares import is_in_state, slower, waits
from exporter.causes.units import COUNT, UNITS, pair, text, unit_of
from rank_probe.judge.verdict import PERSISTENT
from rank_probe.wire.figures import FIGURES
from rank_probe.wire.stages import STAGES
from tests.exporter.causes.planted import case_in, evidence, lateness, peers

EXTRA = {"data": 0.35}
CLOCK = CauseRow(
    cause="slow",
    certainty=Certainty.AMOUNT,
    figure="sm_clock_hertz",
    share=slower(0.02),
    lowers=True,
    says="its clock is {own}[, its peers' {peers}][: {fact}[, {temperature}]]",
    first_action="",
)
ASLEEP = CauseRow(
    cause="code",
    detail=SLEEP,
    certainty=Certainty.AMOUNT,
    states=frozenset({SLEEP}),
    share=is_in_state,
    says="it sleeps[ in `{place}`] for {time}",
    first_action="",
)
GC = CauseRow(
    cause="gc",
    certainty=Certainty.WORK,
    figure="gc_ratio",
    share=waits(0.01),
    healthy=0.0,
    says="{own}[, its peers {peers}]",
    first_action="",
)


def case(changes: Figures, facts: dict[str, str] | None = None, place: str = "") -> Case:
    """Return a rank that is late in data, where it sleeps."""
    states = [("data", SLEEP, 1.0, place)]
    return case_in(lateness(EXTRA), evidence(EXTRA, changes, states, (), facts), peers())


def test_sentence_has_both_figures() -> None:
    """On one scale, with what the figure is of; for a figure that faults lower, the upper third."""
    hot = {"sm_clock_hertz": 1.41e9, "gpu_temperature_celsius": 87.0}
    said = CLOCK.sentence(case(hot, {"sm_clock_hertz": "too hot"}))
    assert said == "its clock is 1.41 GHz, its peers' 1.96: too hot, 87 °C"
    assert CLOCK.peers_value(case(hot)) == pytest.approx(1.95e9 * 1.005)

    # The driver's reason may stand with the throttling.
    said = CLOCK.sentence(case({"sm_clock_hertz": 1e9}, {"gpu_throttled_ratio": "power cap"}))
    assert said == "its clock is 1.00 GHz, its peers' 1.96: power cap, 60 °C"


def test_what_is_not_known_is_left_out() -> None:
    """Peers, facts, lines of code. What is said is not read again as a pattern."""
    alone = case_in(
        Lateness("forward", PERSISTENT, 0.1, {}), Evidence({"sm_clock_hertz": 1e9}), None
    )

    assert CLOCK.sentence(alone) == "its clock is 1.00 GHz"
    assert CLOCK.peers_value(alone) is None
    assert ASLEEP.sentence(case({})) == "it sleeps for 215 ms a step"
    assert ASLEEP.sentence(case({}, place="f[{own}] (a.py:1)")) == (
        "it sleeps in `f[{own}] (a.py:1)` for 215 ms a step"
    )


def test_state_is_about_the_time_in_its_stage() -> None:
    """So it has both figures too; a share where nobody measured how long a step takes."""
    found = case({})
    assert ASLEEP.about(found) == "data_seconds"
    assert found.own("data_seconds") == pytest.approx(0.215)
    assert ASLEEP.peers_value(found) == pytest.approx(0.04 * 0.995)

    states = evidence(EXTRA, {}, [("data", SLEEP, 0.8, "")]).states
    late = Lateness("data", PERSISTENT, 0.5, {"data": 1.0})
    unmeasured = case_in(late, Evidence({}, states), {})
    assert ASLEEP.sentence(unmeasured) == "it sleeps for 80 % of its time"
    assert ASLEEP.about(unmeasured) == ""


def test_figure_of_healthy_peers_need_not_be_known() -> None:
    """For faults that a healthy rank does not have."""
    alone = case_in(lateness(EXTRA), Evidence({"gc_ratio": 0.2}), None)

    assert GC.sentence(alone) == "20 %, its peers 0 %"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.cause}-{row.detail}-{row.figure}")
def test_row_makes_sense(row: CauseRow) -> None:
    """Names of figures and stages exist; the first action says where, and is no book."""
    assert row.figure in ("", *FIGURES)
    assert set(row.stages) <= set(STAGES)
    assert row.proof <= row.states
    assert 0 < len(row.first_action) <= 110
    assert any(word in row.first_action for word in ("PID", "UUID", "NODE", "print "))
    assert row.says[0].islower() or row.says[0] == "{"
    assert row.says.count("[") == row.says.count("]")
    assert row.first_action.count("`") % 2 == 0


@pytest.mark.parametrize(
    ("figure", "value", "written"),
    [
        ("sm_clock_hertz", 1.41e9, "1.41 GHz"),
        ("gpu_temperature_celsius", 87.4, "87 °C"),
        ("gpu_power_watts", 430.0, "430 W"),
        ("main_run_queue_ratio", 0.344, "34 %"),
        ("main_run_queue_ratio", 0.0214, "2.1 %"),
        ("main_run_queue_ratio", 0.0, "0 %"),
        ("read_bytes_per_second", 240e6, "240 MB/s"),
        ("read_bytes_per_second", 0.0, "0 MB/s"),
        ("node_network_link_bytes_per_second", 12.5e9, "12.5 GB/s"),
        ("major_faults_per_second", 1234.0, "1,234 a second"),
        ("data_seconds", 0.21, "210 ms"),
        ("data_seconds", 1.5, "1.5 s"),
        ("node_disk_read_seconds", 0.0004, "400 µs"),
        ("node_disk_read_seconds", 0.0, "0 µs"),
        ("tokens_per_step", 8192.0, "8,192"),
        ("nvlink_links_up", 9.0, "9"),
    ],
)
def test_figure_is_written_in_its_unit(figure: str, value: float, written: str) -> None:
    """GHz, °C, %, MB/s, milliseconds; nobody reads 1410000000.0."""
    assert text(figure, value) == written


@pytest.mark.parametrize(
    ("figure", "own", "peers", "written"),
    [
        ("sm_clock_hertz", 1.41e9, 1.95e9, ("1.41 GHz", "1.95")),
        ("main_run_queue_ratio", 0.34, 0.02, ("34 %", "2 %")),
        ("read_bytes_per_second", 2.4e9, 3e6, ("2.4 GB/s", "0.003")),
        ("node_mount_operation_seconds", 0.05, 0.0008, ("50 ms", "0.8")),
    ],
)
def test_peers_are_on_the_same_scale(
    figure: str, own: float, peers: float, written: tuple[str, str]
) -> None:
    """The unit is said once, except for percent."""
    assert pair(figure, own, peers) == written


def test_every_figure_has_a_unit_or_counts() -> None:
    """A new figure in another unit would be shown as a bare number."""
    counts = {figure for figure in FIGURES if unit_of(figure) == COUNT}

    assert {unit_of(figure) for figure in FIGURES} == {*UNITS, COUNT}
    assert unit_of("") == COUNT
    assert counts == {
        *("gpu_foreign_processes", "gpu_memory_faults", "nvlink_links_up", "saturated_workers"),
        *("tokens_per_step", "samples_per_step", "node_steal_cpus"),
    }
