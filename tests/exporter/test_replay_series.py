"""A trace becomes the series that the exporters would have shown at each scrape."""

from pathlib import Path

import pytest

from exporter.collectors import ranks
from exporter.errors import UsageError
from exporter.replay_series import Timeline, input_series, scrape_times, timeline
from exporter.traces import read_traces

HEADER = "job_id,rank,peer_group,step,time_s,node,data_s,checkpoint_s,sync_s"
# Two ranks, two groups; rank 1 is late by 1 s in each step, rank 0 writes a checkpoint in step 1.
STEPS = [
    "j,0,a,0,2,,0.5,0,1.5",
    "j,1,b,0,2,,1.5,0,0.5",
    "j,0,a,1,12,,0.5,0.5,1",
    "j,1,b,1,12,,1.5,0,0.5",
]


def series(
    tmp_path: Path, rows: list[str], scale: float = 1.0, interval: float = 5.0, header: str = HEADER
) -> dict[str, list[str]]:
    """Return the values of each series of a trace, without job, group and instance."""
    path = tmp_path / "a.csv"
    path.write_text("\n".join([header, *rows, ""]))
    (run,) = read_traces([path])
    line = timeline(run, scale)
    shown = input_series(run, line, scrape_times(line, interval))
    return {
        one["series"].replace('job_id="j",', "").replace(',instance="node0"', ""): one[
            "values"
        ].split()
        for one in shown
    }


def test_counters_are_committed_when_a_step_ends(tmp_path: Path) -> None:
    """Between two rows nothing moves; a stage appears when it occurs first."""
    shown = series(tmp_path, STEPS)
    who = '{peer_group="a",rank="0"'

    assert shown[f"rankskew_steps_total{who}}}"] == ["0", "1", "1", "2"]
    assert shown[f'rankskew_stage_seconds_total{who},phase="data",stage="data"}}'] == (
        ["_", "0.5", "0.5", "1"]
    )
    assert shown[f'rankskew_stage_seconds_total{who},phase="other",stage="checkpoint"}}'] == (
        ["_", "_", "_", "0.5"]
    )
    assert shown[f"rankskew_busy_seconds_total{who}}}"] == ["_", "0.5", "0.5", "1.5"]
    assert shown[f"rankskew_busy_seconds_squared_total{who}}}"] == ["_", "0.25", "0.25", "1.25"]
    assert shown[f"rankskew_sync_floor_seconds{who}}}"] == ["_", "1.5", "1.5", "1"]
    assert shown[f"rankskew_last_step_timestamp_seconds{who}}}"] == ["_", "2", "2", "12"]
    assert shown[f"rankskew_world_size{who}}}"] == ["2"] * 4
    info = f'rankskew_rank_info{who},world_size="2",attempt="0",level="stages"}}'
    assert shown[info] == ["1"] * 4


def test_join_shows_what_each_rank_caused(tmp_path: Path) -> None:
    """Charges of the steps that all ranks have, per stage from 0 on, and groups before ranks."""
    shown = series(tmp_path, [*STEPS, "j,2,b,0,2,,2,0,0", "j,2,b,1,12,,2,0,0"])
    late, other = '{peer_group="b",rank="2"', '{peer_group="a",rank="0"'

    assert shown[f"rankskew_paced_steps_total{late}}}"] == ["0", "1", "1", "2"]
    # Half a second of each step for the other of its group, and for rank 0 after the groups' part.
    assert shown[f'rankskew_wait_caused_seconds_total{late},stage="data"}}'] == ["0", "1", "1", "2"]
    assert shown[f"rankskew_group_wait_seconds_total{other}}}"] == ["0", "1", "1", "1.5"]
    assert shown[f"rankskew_joined_seconds_total{other}}}"] == ["0", "2", "2", "4"]
    assert shown[f"rankskew_join_coverage_ratio{other}}}"] == ["_", "1", "1", "1"]
    one_group = series(tmp_path, [row.replace(",b,", ",a,") for row in STEPS])
    assert not any(name.startswith("rankskew_group_wait") for name in one_group)


def test_nothing_is_shown_that_no_exporter_shows(tmp_path: Path) -> None:
    """Each series of a replay is one that the collector of ranks exposes, by the same name."""
    source = Path(ranks.__file__).read_text()
    names = {name.partition("{")[0] for name in series(tmp_path, STEPS)}

    assert len(names) > 12
    assert {name for name in names if f'"{name}"' not in source} == set()


def test_step_that_lacks_a_rank_is_counted_but_not_joined(tmp_path: Path) -> None:
    """The counters of a rank go on without the others; the coverage says that the join does not."""
    shown = series(tmp_path, [*STEPS, "j,0,a,2,14,,0.5,0,1.5"])
    who = '{peer_group="a",rank="0"}'

    assert shown[f"rankskew_steps_total{who}"][-1] == "3"
    assert shown[f"rankskew_joined_seconds_total{who}"][-1] == "4"
    assert float(shown[f"rankskew_join_coverage_ratio{who}"][-1]) == pytest.approx(2 / 3)


def test_rank_that_begins_later_is_no_missing_one(tmp_path: Path) -> None:
    """Its series begin with its first step, and the job's size grows with it."""
    rows = [*STEPS, "j,2,b,1,12,,1.5,0,0.5"]
    shown = series(tmp_path, rows)

    assert shown['rankskew_steps_total{peer_group="b",rank="2"}'] == ["_", "_", "0", "1"]
    assert shown['rankskew_world_size{peer_group="a",rank="0"}'] == ["2", "2", "3", "3"]


def test_wait_that_was_not_measured_is_absent(tmp_path: Path) -> None:
    """Zeros everywhere are no wait; a zero beside other ranks' waits is one."""
    blind = [",".join([*row.split(",")[:-1], "0"]) for row in STEPS]
    names = [
        *series(tmp_path, blind),
        *series(tmp_path, [row.rsplit(",", 1)[0] + "," for row in STEPS]),
    ]

    assert any("rankskew_stage_seconds_total" in name for name in names)
    assert not any("sync" in name or "join" in name or "caused" in name for name in names)
    last = [row if ",1,b," not in row else row[:-3] + "0" for row in STEPS]
    shown = series(tmp_path, last)
    sync = 'rankskew_stage_seconds_total{peer_group="b",rank="1",phase="sync",stage="sync"}'
    assert shown[sync] == ["_", "0", "0", "0"]


def test_time_scale_stretches_clock_and_stages_alike(tmp_path: Path) -> None:
    """Ten times slower: the same numbers at ten times the time, so shares of time stay."""
    shown, slow = series(tmp_path, STEPS), series(tmp_path, STEPS, scale=10, interval=50)
    who = '{peer_group="b",rank="1"}'

    assert slow[f"rankskew_steps_total{who}"] == shown[f"rankskew_steps_total{who}"]
    for name, power in (("busy_seconds", 1), ("busy_seconds_squared", 2), ("joined_seconds", 1)):
        values = [float(value) for value in shown[f"rankskew_{name}_total{who}"][1:]]
        slower = [float(value) for value in slow[f"rankskew_{name}_total{who}"][1:]]
        assert slower == pytest.approx([value * 10**power for value in values])
    assert slow[f"rankskew_last_step_timestamp_seconds{who}"][-1] == "120"


def test_scrapes_begin_and_end_with_the_run() -> None:
    """The first is at its begin, the last at its end or after it."""
    assert scrape_times(Timeline(1.0, 0.0, {0: 0.0}, {0: {0: 31.0}}), 15.0) == [0, 15, 30, 45]


@pytest.mark.parametrize("seconds", [2_999_990.0, 1e11, float("inf")])
def test_run_of_too_many_scrapes_is_refused(seconds: float) -> None:
    """Clocks that do not agree make a run of years: it is said what to do, and no memory spent."""
    with pytest.raises(
        UsageError, match=r"scrapes; .*--scrape-interval.*--time-scale.*same moment"
    ):
        scrape_times(Timeline(1.0, 0.0, {0: 0.0}, {0: {0: seconds}}), 15.0)


@pytest.mark.parametrize(
    ("times", "ends"), [((2, 12), [2, 12]), ((0, 10), [2, 12]), ((99, 109), [2, 12])]
)
def test_time_is_the_end_of_a_step_or_its_begin(
    tmp_path: Path, times: tuple[int, int], ends: list[int]
) -> None:
    """A first step that cannot have ended by its time_s began then; the run begins with it."""
    rows = [
        row.replace(",2,,", f",{times[0]},,").replace(",12,,", f",{times[1]},,") for row in STEPS
    ]
    path = tmp_path / "a.csv"
    path.write_text("\n".join([HEADER, *rows, ""]))
    line = timeline(read_traces([path])[0], 1.0)

    assert [list(of_rank.values()) for of_rank in line.ends.values()] == [ends, ends]
    assert line.begins == {0: 0.0, 1: 0.0}
    assert line.origin_seconds == max(times[0] - 2, 0)


def test_node_is_the_instance(tmp_path: Path) -> None:
    """A node's rank or name tells ranks on one node from those on another."""
    rows = ["j,0,a,0,2,1,0.5,0,1.5", "j,1,a,0,2,gpu-b,0.5,0,1.5"]

    assert [
        'instance="node1"' in name or 'instance="gpu-b"' in name for name in series(tmp_path, rows)
    ] == [True] * len(series(tmp_path, rows))
