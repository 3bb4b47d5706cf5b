"""The rule files load in the oldest supported Prometheus, and do what their promtool tests say.

Also covered: every job has every threshold, and missed scrapes change no job's state.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from exporter.vocabulary import thresholds
from tests.alerts.promtool import GROUPS, RULES, Expect, assert_rules, promtool

pytestmark = pytest.mark.e2e

CASES = sorted(Path(__file__).parent.glob("*.yaml"))


def test_rules_pass_every_check_of_promtool() -> None:
    """No rule is invalid, duplicate, or outside of what Prometheus 2.42 understands."""
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES))

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_group_has_its_turn() -> None:
    """Groups are named after their file, and the tests evaluate all of them."""
    assert sorted(GROUPS) == [path.stem for path in RULES]


def test_alerts_fire_when_due_and_stay_quiet() -> None:
    """Alerts fire when due with the promised text, and stay quiet before and on healthy input."""
    done = promtool("test", "rules", *map(str, CASES))

    assert done.stdout.count("SUCCESS") == len(CASES), done.stdout + done.stderr
    assert done.returncode == 0


# ---- Thresholds: every job has each of them, and its own value wins ------------------------------

VALUE = "job:rankskew_threshold:value"
DEFAULTS = {each.name: each.value for each in thresholds.defaults().values()}
NODE = 'rankskew_node_ranks{job_id="j",instance="n",state="beating"}'
ELSEWHERE = NODE.replace("{", '{cluster="c",')
WITHOUT_PROBE = 'rankskew_gpu_rank_info{job_id="j",local_rank="0",source="environ"}'
IDLE = 'rankskew_gpus_visible{%sinstance="n"}'
OVERRIDE = "rankskew:threshold:override"


def values(who: str, **changed: float) -> dict[str, float]:
    """Return all thresholds of a job: the defaults, with *changed* in place of some."""
    return {f'{VALUE}{{{who}name="{n}"}}': value for n, value in (DEFAULTS | changed).items()}


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        pytest.param({NODE: 1}, values('job_id="j",'), id="a job has all the defaults"),
        pytest.param({WITHOUT_PROBE: 1}, values('job_id="j",'), id="without the probe, too"),
        pytest.param({WITHOUT_PROBE: 1, NODE: 1}, values('job_id="j",'), id="and but once"),
        pytest.param(
            {IDLE % "": 8, IDLE % 'cluster="c",': 8},
            values("") | values('cluster="c",'),
            id="GPUs without a job have them by an empty job_id, in each cluster",
        ),
        pytest.param(
            {
                NODE: 1,
                OVERRIDE + '{job_id="j",name="hang_seconds"}': 10,
                OVERRIDE + '{job_id="other",name="skew_ratio"}': 0.5,
            },
            values('job_id="j",', hang_seconds=10)
            | {f'{VALUE}{{job_id="other",name="skew_ratio"}}': 0.5},
            id="an override is of its job and its name",
        ),
        pytest.param(
            {
                NODE: 1,
                NODE.replace('"j"', '"own"'): 1,
                OVERRIDE + '{name="hang_seconds"}': 300,
                OVERRIDE + '{job_id="own",name="hang_seconds"}': 10,
            },
            values('job_id="j",', hang_seconds=300) | values('job_id="own",', hang_seconds=10),
            id="the job's own counts, then the one for all jobs, then the default",
        ),
        pytest.param(
            {
                NODE: 1,
                ELSEWHERE: 1,
                OVERRIDE + '{cluster="c",job_id="j",name="hang_seconds"}': 10,
                OVERRIDE + '{cluster="c",name="skew_ratio"}': 0.5,
            },
            values('job_id="j",')
            | values('cluster="c",job_id="j",', hang_seconds=10, skew_ratio=0.5),
            id="two clusters' jobs of one name share no override",
        ),
    ],
)
def test_every_job_has_every_threshold(
    tmp_path: Path, series: dict[str, float], expected: dict[str, float]
) -> None:
    """A job's own override wins over the one for all jobs, and that over the default."""
    inputs = [{"series": name, "values": f"{value}x10"} for name, value in series.items()]

    assert len(DEFAULTS) > 20
    assert_rules(tmp_path, inputs, [Expect(VALUE, 30, expected)], groups=["thresholds"])


# ---- Missed scrapes: the state of a job stays what it was ----------------------------------------

# The worst order, each group before those that it reads: Prometheus evaluates groups concurrently.
WORST_ORDER = ("state", "coverage", "hang", "late", "ranks", "thresholds")
SCRAPES = 26
# The numbers of the missed scrapes: one, and later two in a row.
MISSED = (10, 16, 17)
# The end is long after the last missed scrape; the window before it begins before the first.
END_SECONDS, SETTLED_SECONDS = 25 * 15, 17 * 15

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
UNPROBED = 'rankskew_gpu_rank_info{rank="0",local_rank="0",source="environ"}'
LATE = 'peer_group="all",rank="1"'
# What a job's only exporter shows, by state and reason; some states have several reasons.
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
    **{
        (kind, ""): JUDGED | {f'rankskew_job_gpus_lost{{kind="{kind}"}}': 0.5}
        for kind in ("rotating", "pause", "shared")
    },
    ("not_judgeable", "no_sync"): JUDGED | {'rankskew_job_not_judgeable{reason="no_sync"}': 1.0},
    ("not_judgeable", "no_join"): TRAINS | {"rankskew_node_run_seconds": 1_000.0},
    ("not_judgeable", "join_incomplete"): JUDGED
    | {"rankskew_job_coverage_ratio": 0.4, "rankskew_node_run_seconds": 1_000.0},
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
    **{
        (state, ""): {UNPROBED: 1.0, f'rankskew_gpu_fault{{{rank},fault="{fault}"}}': 1.0}
        for state, fault, rank in (
            ("stands_still", "stands_still", 'rank="0"'),
            ("unused_gpus", "unused", 'gpu="7"'),
        )
    },
    ("no_probe", ""): {UNPROBED: 1.0},
}


def scraped(series: str, value: float, instance: str, job_id: str = "") -> dict[str, str]:
    """Return *series* at a constant *value*; the instance `late` fails the MISSED scrapes."""
    name, _, labels = series.partition("{")
    more = f'job="r",instance="{instance}"' + (f',job_id="{job_id}"' if job_id else "")
    gone = "0" if name == "up" else "stale"
    values = [f"{value:g}"] * SCRAPES
    if instance == "late":
        values = [gone if at in MISSED else each for at, each in enumerate(values)]
    rest = f",{labels.removesuffix('}')}" if labels else ""
    return {"series": f"{name}{{{more}{rest}}}", "values": " ".join(values)}


def assert_states(folder: Path, series: list[dict[str, str]], expected: Mapping[str, str]) -> None:
    """Assert that each job was in its *expected* state, and in no other, since it settled."""
    had = (
        f"group by (job_id, state) (last_over_time(job:rankskew_state:info[{SETTLED_SECONDS:g}s]))"
    )
    samples = {f'{{job_id="{job}",state="{state}"}}': 1.0 for job, state in expected.items()}
    assert_rules(folder, series, [Expect(had, END_SECONDS, samples)], groups=WORST_ORDER)


def test_state_of_a_job_on_one_node_stays_what_it_was(tmp_path: Path) -> None:
    """A job keeps its state while scrapes of its only exporter fail and after they resume."""
    series = [scraped("up", 1.0, "late")]
    expected = {}
    for (state, why), shown in JOBS.items():
        job_id = f"{state} {why}"
        series += [scraped(each, value, "late", job_id) for each, value in shown.items()]
        expected[job_id] = state

    assert_states(tmp_path, series, expected)


def test_state_of_a_job_on_two_nodes_stays_what_it_was(tmp_path: Path) -> None:
    """While scrapes of a node fail, its ranks are not missing and its late rank stays late."""
    series = [scraped("up", 1.0, "late"), scraped("up", 1.0, "other")]
    whole = {"rankskew_node_world_size": 4.0, 'rankskew_job_ranks{peer_group="all"}': 4.0}
    for job_id in ("healthy", "straggler"):
        for name, value in (JOBS[job_id, ""] | whole).items():
            series.append(scraped(name, value, "late", job_id))
            if not name.startswith("rankskew_late_"):
                series.append(scraped(name, value, "other", job_id))

    assert_states(tmp_path, series, {"healthy": "healthy", "straggler": "straggler"})
