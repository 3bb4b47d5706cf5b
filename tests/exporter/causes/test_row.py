"""A row's sentence has both figures as people write them, and leaves out what is not known."""

import pytest

from exporter.causes.explain import ROWS
from exporter.causes.model import Evidence, Lateness, Peers, ThreadState
from exporter.causes.row import CauseRow
from exporter.causes.units import COUNT, UNITS, pair, text, unit_of
from rank_probe.judge.verdict import PERSISTENT
from rank_probe.wire.figures import FIGURES
from rank_probe.wire.stages import STAGES
from tests.exporter.causes.planted import States, at, evidence, lateness, peers, why

LATE = Lateness("data", PERSISTENT, 0.5, {"data": 1.0})
EXTRA = {"data": 0.35}
SLEEP: States = at("data", "", sleep=1.0)


@pytest.mark.parametrize(
    ("late", "said", "usual", "sentence"),
    [
        # What is said is not read again as a pattern; without a line of code that is left out.
        (LATE, evidence(EXTRA, {}, SLEEP), peers(), "it sleeps for 215 ms a step"),
        (
            LATE,
            evidence(EXTRA, {}, at("data", "f[{own}] (a.py:1)", sleep=1.0)),
            peers(),
            "it sleeps in `f[{own}] (a.py:1)` for 215 ms a step",
        ),
        # Nobody measured how long a step takes.
        (
            LATE,
            Evidence({}, [ThreadState("data", "sleep", 1.0)]),
            {},
            "it sleeps for 100 % of its time",
        ),
        # The driver's reason for a low clock may stand with the throttling.
        (
            lateness({"forward": 0.3}),
            evidence(
                {"forward": 0.3},
                {"sm_clock_hertz": 1e9},
                facts={"gpu_throttled_ratio": "power cap"},
            ),
            peers(),
            "its SM clock is 1.00 GHz, its peers' 1.96: power cap, 60 °C",
        ),
        # Of healthy peers some figures need not be known.
        (
            LATE,
            Evidence({"gc_ratio": 0.4}),
            None,
            "it spends 40 % of the time collecting garbage, its peers 0 %",
        ),
    ],
)
def test_sentence_has_both_figures_and_leaves_out_what_is_not_known(
    late: Lateness, said: Evidence, usual: Peers | None, sentence: str
) -> None:
    """On one scale, with what the figure is of."""
    assert why(late, said, usual).sentence == sentence


def test_state_is_about_the_time_in_its_stage() -> None:
    """So it has both figures too; none where nobody measured how long a step takes."""
    cause = why(LATE, evidence(EXTRA, {}, SLEEP), peers())
    assert cause.figure == "data_seconds"
    assert cause.value == pytest.approx(0.215)
    assert cause.peers_value == pytest.approx(0.04 * 0.995)

    unmeasured = why(LATE, Evidence({}, [ThreadState("data", "sleep", 1.0)]), {})
    assert (unmeasured.figure, unmeasured.value, unmeasured.peers_value) == ("", None, None)


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
        ("main_run_queue_ratio", 0.344, "34 %"),
        ("main_run_queue_ratio", 0.0214, "2.1 %"),
        ("read_bytes_per_second", 240e6, "240 MB/s"),
        ("node_network_link_bytes_per_second", 12.5e9, "12.5 GB/s"),
        ("major_faults_per_second", 1234.0, "1,234 a second"),
        ("data_seconds", 0.21, "210 ms"),
        ("node_disk_read_seconds", 0.0004, "400 µs"),
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
