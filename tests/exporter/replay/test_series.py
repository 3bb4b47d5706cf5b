"""A judged trace becomes the series that the exporters would have shown at each scrape."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from exporter.collectors.rank import jobs, late_causes, late_ranks, ranks
from exporter.errors import UsageError
from exporter.replay.judge import Judged
from exporter.replay.series import input_series, scrape_times
from exporter.replay.stretches import stretches
from exporter.replay.times import Timeline, timeline
from exporter.replay.traces import read_traces
from rank_probe.verdict import NO_SYNC, UNSYNCED, Late, Verdict

HEADER = "job_id,rank,peer_group,step,time_s,node,data_s,checkpoint_s,sync_s"
# Two ranks on two nodes; rank 1 is late by 1 s in each step, rank 0 writes a checkpoint in step 1.
STEPS = [
    "j,0,a,0,2,0,0.5,0,1.5",
    "j,1,b,0,2,1,1.5,0,0.5",
    "j,0,a,1,12,0,0.5,0.5,1",
    "j,1,b,1,12,1,1.5,0,0.5",
]
LATE = Late(1, "b", "data", "persistent", 0.5, {"data": 0.3, "eval": 0.1}, 3.0, 20, 2.0)
LOST = {"group": 0.1, "persistent": 0.4, "rotating": 0.2, "common": 0.3}
VERDICT = Verdict(
    1,
    {"a": 1, "b": 1},
    step_seconds=2.5,
    slowdown=1.5,
    gpus_lost=LOST,
    rotating={"forward": 0.2},
    late=(LATE,),
)


def series(
    tmp_path: Path,
    rows: list[str],
    *,
    scale: float = 1.0,
    interval: float = 5.0,
    verdicts: Sequence[tuple[float, Verdict]] = ((4.0, VERDICT),),
) -> dict[str, list[str]]:
    """Return the values of each series of a trace, without the job."""
    path = tmp_path / "a.csv"
    path.write_text("\n".join([HEADER, *rows, ""]))
    (run,) = read_traces([path])
    line = timeline(run, scale)
    judged = [Judged(part, list(verdicts)) for part in stretches(run, line)]
    return {
        one["series"].replace('job_id="j",', ""): one["values"].split()
        for one in input_series(run, line, judged, scrape_times(line, interval))
    }


def test_counters_are_committed_when_a_step_ends(tmp_path: Path) -> None:
    """Between two rows nothing moves; a stage appears when it occurs first."""
    shown = series(tmp_path, STEPS)
    who = '{peer_group="a",rank="0",instance="node0"'

    assert shown[f"rankskew_steps_total{who}}}"] == ["0", "1", "1", "2"]
    assert shown[f'rankskew_stage_seconds_total{who},phase="data",stage="data"}}'] == (
        ["_", "0.5", "0.5", "1"]
    )
    assert shown[f'rankskew_stage_seconds_total{who},phase="other",stage="checkpoint"}}'] == (
        ["_", "_", "_", "0.5"]
    )
    assert shown[f"rankskew_busy_seconds_total{who}}}"] == ["_", "0.5", "0.5", "1.5"]
    assert shown[f"rankskew_last_step_timestamp_seconds{who}}}"] == ["_", "2", "2", "12"]
    info = f'rankskew_rank_info{who},world_size="2",attempt="0",level="stages"}}'
    assert shown[info] == ["1"] * 4


def test_late_rank_is_shown_by_its_own_node(tmp_path: Path) -> None:
    """From the first verdict that names it to the last."""
    over = Verdict(2, {"a": 1, "b": 1})
    shown = series(tmp_path, STEPS, verdicts=[(4.0, VERDICT), (6.0, VERDICT), (11.0, over)])
    who = '{peer_group="b",rank="1",instance="node1"'

    late = f'rankskew_late_ratio{who},kind="persistent",stage="data",nodename="node1"}}'
    assert shown[late] == ["_", "0.5", "0.5", "stale"]
    assert shown[f'rankskew_late_gpus{who},stage="eval"}}'] == ["_", "0.1", "0.1", "stale"]
    assert shown[f"rankskew_late_since_timestamp_seconds{who}}}"] == ["_", "1", "3", "stale"]
    assert len([name for name in shown if name.startswith("rankskew_late")]) == 5


def test_every_node_shows_the_job(tmp_path: Path) -> None:
    """The job's loss, the length of its steps, the judged ranks, and that its ranks beat."""
    shown = series(tmp_path, STEPS)

    for node in ("node0", "node1"):
        job = f'{{instance="{node}"'
        for kind, gpus in LOST.items():
            assert shown[f'rankskew_job_gpus_lost{job},kind="{kind}"}}'][1:] == [str(gpus)] * 3
        assert shown[f'rankskew_job_judge_info{job},judge="join"}}'] == ["_", "1", "1", "1"]
        rotating = f'rankskew_job_stage_gpus_lost{job},stage="forward"}}'
        assert shown[rotating] == ["_", "0.2", "0.2", "0.2"]
        assert shown[f"rankskew_job_slowdown_ratio{job}}}"][-1] == "1.5"
        assert shown[f"rankskew_job_step_seconds{job}}}"][-1] == "2.5"
        assert shown[f'rankskew_job_ranks{job},peer_group="b"}}'][-1] == "1"
        assert shown[f"rankskew_job_coverage_ratio{job}}}"][-1] == "1"
        assert shown[f'rankskew_node_ranks{job},state="beating"}}'] == ["1"] * 4
        assert shown[f'rankskew_node_ranks{job},state="silent"}}'] == ["0"] * 4
        assert shown[f"rankskew_node_world_size{job}}}"] == ["2"] * 4
        assert shown[f"rankskew_node_run_seconds{job}}}"] == ["0", "5", "10", "15"]
        assert shown[f"rankskew_node_stepping_ranks{job}}}"] == ["0", "1", "1", "1"]
        assert shown[f"rankskew_node_last_step_age_seconds{job}}}"] == ["_", "3", "8", "3"]
    assert not any("not_judgeable" in name for name in shown)


def test_wait_that_was_not_measured_has_no_cost(tmp_path: Path) -> None:
    """The reason is exposed, and ranks that stand out, without GPUs that wait for them."""
    blind = Late(1, "b", "data", UNSYNCED, 0.5, {"data": 0.0}, 3.0, 20, 2.0)
    verdict = Verdict(1, {"a": 1, "b": 1}, reason=NO_SYNC, late=(blind,))
    shown = series(tmp_path, STEPS, verdicts=[(4.0, verdict)])

    assert shown['rankskew_job_not_judgeable{instance="node0",reason="no_sync"}'][1:] == ["1"] * 3
    assert any(name.startswith("rankskew_late_ratio") for name in shown)
    assert not any("gpus" in name or "slowdown" in name for name in shown)


def test_nothing_is_shown_that_no_exporter_shows(tmp_path: Path) -> None:
    """Each series of a replay is one that a collector exposes, by the same name."""
    shown = (ranks, jobs, late_ranks, late_causes)
    source = "".join(Path(str(one.__file__)).read_text() for one in shown)
    names = {name.partition("{")[0] for name in series(tmp_path, STEPS)}

    assert len(names) >= 20
    assert {name for name in names if f'"{name}"' not in source} == set()


def test_ranks_that_come_and_go_are_no_missing_ones(tmp_path: Path) -> None:
    """The job is as large as the ranks that are there; those that have left expose nothing."""
    rows = [
        f"j,{rank},a,{step},{step + 1},0,0.5,0,0.5"
        for step in range(90)
        for rank in range(3)
        if rank == 0 or (step < 60 if rank == 1 else step >= 30)
    ]
    shown = series(tmp_path, rows, interval=15.0, verdicts=[])

    def of(rank: int, name: str) -> list[str]:
        return shown[f'rankskew_{name}{{peer_group="a",rank="{rank}",instance="node0"}}']

    assert of(1, "steps_total") == ["0", "15", "30", "45", "stale", "stale", "stale"]
    assert of(2, "steps_total") == ["_", "_", "0", "15", "30", "45", "60"]
    nodes = 'rankskew_node_ranks{instance="node0",state="beating"}'
    assert shown[nodes] == ["2", "2", "3", "3", "2", "2", "2"]


def test_time_scale_stretches_clock_and_stages_alike(tmp_path: Path) -> None:
    """Ten times slower: the same steps at ten times the time, each ten times as long."""
    shown, slow = series(tmp_path, STEPS), series(tmp_path, STEPS, scale=10, interval=50)
    who = '{peer_group="b",rank="1",instance="node1"}'

    assert slow[f"rankskew_steps_total{who}"] == shown[f"rankskew_steps_total{who}"]
    busy, slower = (
        [float(value) for value in one[f"rankskew_busy_seconds_total{who}"][1:]]
        for one in (shown, slow)
    )
    assert slower == pytest.approx([value * 10 for value in busy])
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


def test_node_is_the_instance(tmp_path: Path) -> None:
    """A node's rank or name separates its ranks from another node's."""
    rows = ["j,0,a,0,2,1,0.5,0,1.5", "j,1,a,0,2,gpu-b,0.5,0,1.5", "j,2,a,0,2,,0.5,0,1.5"]
    instances = {name.split('instance="')[1].split('"')[0] for name in series(tmp_path, rows)}

    assert instances == {"node1", "gpu-b", "node0"}
