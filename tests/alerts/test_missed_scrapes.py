"""A node that answers a scrape or two too late: the state of its jobs stays what it was."""

from collections.abc import Mapping
from pathlib import Path

from tests.alerts.promtool import Expect, assert_rules

# The worst order, each group before those that it reads: Prometheus evaluates them side by side.
GROUPS = ("state", "coverage", "hang", "late", "ranks", "thresholds")
SCRAPES = 60
# One scrape, and later two in a row.
MISSED = (20, 40, 41)
# Long after the last of them; and since before the first.
END_SECONDS, SETTLED_SECONDS = 55 * 15, 37 * 15

TRAINS = {
    'rankskew_node_ranks{state="beating"}': 2.0,
    "rankskew_node_world_size": 2.0,
    "rankskew_node_run_seconds": 400.0,
    "rankskew_node_stepping_ranks": 2.0,
    "rankskew_node_last_step_age_seconds": 1.0,
}
JUDGED = {
    **TRAINS,
    'rankskew_job_ranks{peer_group="all"}': 2.0,
    "rankskew_job_coverage_ratio": 1.0,
    "rankskew_job_step_seconds": 1.0,
    'rankskew_job_gpus_lost{kind="rotating"}': 0.0,
}
LATE = 'peer_group="all",rank="1"'
# What the only exporter of a job shows of it, by its state; some occur twice, for another reason.
JOBS: dict[tuple[str, str], dict[str, float]] = {
    ("healthy", ""): JUDGED,
    ("healthy", "slow steps"): JUDGED
    | {"rankskew_job_step_seconds": 30.0, "rankskew_node_last_step_age_seconds": 90.0},
    ("straggler", ""): JUDGED
    | {
        f'rankskew_late_ratio{{{LATE},nodename="gpu-1",kind="persistent",stage="data"}}': 0.4,
        f'rankskew_late_gpus{{{LATE},stage="data"}}': 0.8,
        f'rankskew_late_cause_info{{{LATE},cause="code"}}': 1.0,
    },
    ("rotating", ""): JUDGED | {'rankskew_job_gpus_lost{kind="rotating"}': 0.5},
    ("not_judgeable", "no_sync"): JUDGED | {'rankskew_job_not_judgeable{reason="no_sync"}': 1.0},
    ("not_judgeable", "no_join"): TRAINS | {"rankskew_node_run_seconds": 1_000.0},
    ("not_judgeable", "join_incomplete"): JUDGED
    | {"rankskew_job_coverage_ratio": 0.5, "rankskew_node_run_seconds": 1_000.0},
    ("not_judgeable", "no_steps"): JUDGED | {"rankskew_node_last_step_age_seconds": 90.0},
    ("starting", ""): {
        'rankskew_node_ranks{state="beating"}': 2.0,
        "rankskew_node_world_size": 2.0,
        "rankskew_node_stepping_ranks": 0.0,
        "rankskew_node_starting_seconds": 100.0,
    },
    ("starting", "warming_up"): JUDGED | {'rankskew_job_not_judgeable{reason="warming_up"}': 1.0},
    ("ranks_missing", ""): JUDGED | {"rankskew_node_world_size": 4.0},
    ("hung", ""): TRAINS
    | {
        "rankskew_node_last_step_age_seconds": 150.0,
        f'rankskew_stage_elapsed_seconds{{{LATE},stage="sync"}}': 150.0,
    },
    ("finished", ""): {'rankskew_node_ranks{state="finished"}': 2.0},
    ("no_probe", ""): {'rankskew_gpu_rank_info{rank="0",local_rank="0",source="environ"}': 1.0},
}


def scraped(series: str, value: float, instance: str, job_id: str = "") -> dict[str, str]:
    """Return *series* of a target that shows *value*; of node `late`, some scrapes are MISSED."""
    name, _, labels = series.partition("{")
    more = f'job="r",instance="{instance}"' + (f',job_id="{job_id}"' if job_id else "")
    gone = "0" if name == "up" else "stale"
    values = [f"{value:g}"] * SCRAPES
    if instance == "late":
        values = [gone if at in MISSED else each for at, each in enumerate(values)]
    rest = f",{labels.removesuffix('}')}" if labels else ""
    return {"series": f"{name}{{{more}{rest}}}", "values": " ".join(values)}


def assert_states(folder: Path, series: list[dict[str, str]], expected: Mapping[str, str]) -> None:
    """Assert that each job has the state that is *expected*, and has had no other."""
    had = (
        f"group by (job_id, state) (last_over_time(job:rankskew_state:info[{SETTLED_SECONDS:g}s]))"
    )
    samples = {f'{{job_id="{job}",state="{state}"}}': 1.0 for job, state in expected.items()}
    assert_rules(folder, series, [Expect(had, END_SECONDS, samples)], groups=GROUPS)


def test_state_of_a_job_on_one_node_stays_what_it_was(tmp_path: Path) -> None:
    """Each state, while its only exporter is not scraped and once it is scraped again."""
    series = [scraped("up", 1.0, "late")]
    expected = {}
    for (state, why), shown in JOBS.items():
        job_id = f"{state} {why}"
        series += [scraped(each, value, "late", job_id) for each, value in shown.items()]
        expected[job_id] = state

    assert_states(tmp_path, series, expected)


def test_state_of_a_job_on_two_nodes_stays_what_it_was(tmp_path: Path) -> None:
    """Ranks of a node that was not scraped are not missing, nor is its late rank forgotten."""
    series = [scraped("up", 1.0, "late"), scraped("up", 1.0, "other")]
    whole = {"rankskew_node_world_size": 4.0, 'rankskew_job_ranks{peer_group="all"}': 4.0}
    for job_id in ("healthy", "straggler"):
        for name, value in (JOBS[job_id, ""] | whole).items():
            series.append(scraped(name, value, "late", job_id))
            if not name.startswith("rankskew_late_"):
                series.append(scraped(name, value, "other", job_id))

    assert_states(tmp_path, series, {"healthy": "healthy", "straggler": "straggler"})
