"""The first screens of the job and the fleet say what is the matter, in every state of a job."""

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from dashboards.panels import STATES
from tests.alerts.promtool import RULES, Answers, Expect, answers, assert_rules
from tests.dashboards.dashboard_files import (
    JSON_FILES,
    ROOT,
    dashboard_panels,
    load,
    named,
    substituted,
    targets,
)

pytestmark = pytest.mark.e2e

OF_NODE = 'rankskew_node_ranks{job_id="j",instance="n",job="r",state="%s"} 8'
RUNS = [
    OF_NODE % "beating",
    'job:rankskew_ranks_beating:sum{job_id="j"} 8',
    'job:rankskew_world_size:max{job_id="j"} 8',
    'job:rankskew_run_seconds:max{job_id="j"} 3600',
    'job:rankskew_step_seconds:max{job_id="j"} 0.5',
]
JUDGED = [
    *RUNS,
    'job:rankskew_ranks:sum{job_id="j"} 8',
    'job:rankskew_slowdown:max{job_id="j"} 1.25',
    'job:rankskew_coverage:ratio{job_id="j"} 1',
    'rankskew_job_judge_info{job_id="j",judge="join",instance="n"} 1',
    'rankskew_job_judge_info{job_id="j",judge="join",instance="m"} 1',
    'job_kind:rankskew_gpus_lost:sum{job_id="j",kind="common"} 0.13',
    'job:rankskew_gpus_lost:sum{job_id="j"} 1.23',
    'job:rankskew_lost_cost_per_hour:sum{job_id="j"} 3.08',
]
TOLD = (
    'page:rankskew_gpus_lost:last1m{job_id="j",instance="n:9917",nodename="n",severity="warning",'
    'stage="data",%s}'
)
HUNG = [
    *JUDGED[:-3],
    'job_kind:rankskew_gpus_lost:sum{job_id="j",kind="hung"} 8',
    'job:rankskew_hung:seconds{job_id="j"} 150',
    'job:rankskew_gpus_lost:sum{job_id="j"} 8',
    'job:rankskew_lost_cost_per_hour:sum{job_id="j"} 20',
    'rankskew_node_last_step_age_seconds{job_id="j",instance="n"} 160',
]
LATE = (
    'rank:rankskew_late:ratio{job_id="j",peer_group="all",rank="%s",instance="n:9917",kind="%s",'
    'stage="data"}'
)
STUCK = (
    'rankskew_stage_elapsed_seconds{job_id="j",peer_group="all",rank="%s",instance="n",stage="%s"} '
    "150"
)
REASON = 'job_reason:rankskew_not_judgeable:bool{job_id="j",reason="%s"} 1'
# When the samples are read, in seconds since the epoch.
NOW = 300


@dataclass(frozen=True)
class Case:
    """The recorded series of a job, and the names and values that its first row shows, by panel.

    *rows* are the rows of the table "Who the job waits for", with their kind and stage.
    """

    state: str
    series: list[str]
    shown: dict[str, dict[str, float]]
    rows: dict[str, tuple[str, str]]


CASES = {
    "healthy": Case(
        "healthy",
        JUDGED,
        {
            "GPUs lost": {"1.2 of 8": 0, "3.08 US$/h": 0},
            "Who": {"Nobody": 1},
            "Since": {"started": (NOW - 3600) * 1000},
            "Step": {"takes": 0.5, "slowdown": 1.25},
            "Judged": {"by join": 1},
            "Alerts": {"None": 0},
        },
        {"Nobody": ("", "")},
    ),
    "straggler": Case(
        "straggler",
        [
            *JUDGED,
            TOLD % 'rank="5",cause="slow_device"' + " 1.1",
            LATE % (5, "persistent") + " 0.3",
            'rank:rankskew_told_gpus_lost:sum{job_id="j",peer_group="all",rank="5"} 1.1',
            'rankskew_late_since_timestamp_seconds{job_id="j",peer_group="all",rank="5"} 120',
            'ALERTS{alertname="RankskewStraggler",alertstate="firing",job_id="j",rank="5"} 1',
        ],
        {
            "GPUs lost": {"1.2 of 8": 1.23 / 8, "3.08 US$/h": 0},
            "Who": {"rank 5 · data · slow GPU": 1.1},
            "Since": {"late": 120_000},
            "Alerts": {"Straggler": 1},
        },
        {"rank 5": ("persistent", "data")},
    ),
    "duty": Case(
        "straggler",
        [
            *JUDGED,
            LATE % (0, "duty") + " 0.5",
            'rank:rankskew_told_gpus_lost:sum{job_id="j",rank="0",kind="duty",stage="data"} 1.1',
        ],
        {"Who": {"rank 0 · data": 1.1}},
        {"rank 0": ("duty", "data")},
    ),
    "many stragglers": Case(
        "straggler",
        [
            *JUDGED,
            *(TOLD % f'rank="{rank}",cause="gc"' + f" {rank}" for rank in range(1, 6)),
            *(LATE % (rank, "pauses") + " 0.3" for rank in range(1, 6)),
        ],
        {
            "Who": {
                "rank 5 · data · garbage collection": 5,
                "rank 4 · data · garbage collection": 4,
                "and 3 more": 1,
            }
        },
        {f"rank {rank}": ("pauses", "data") for rank in range(1, 6)},
    ),
    "slow node": Case(
        "slow_node",
        [*JUDGED, TOLD % 'cause="cpu"' + " 1.1", LATE % (4, "node") + " 0.3"],
        {"Who": {"node n · data · CPU": 1.1}},
        {"rank 4": ("node", "data")},
    ),
    "hung": Case(
        "hung",
        [
            *HUNG,
            'rank_stage:rankskew_hang_suspect:group{job_id="j",rank="5",stage="data"} 1',
            TOLD % 'rank="2",cause="gc"' + " 1",
        ],
        {
            "GPUs lost": {"8 of 8": 1, "20 US$/h": 0},
            "Who": {"rank 5 · data": 1},
            "Since": {"hung": (NOW - 150) * 1000},
            "Step": {"since the last": 160},
            "Judged": {"it hangs": 0},
        },
        {"rank 5": ("job hangs", "data")},
    ),
    "hung with its GPU": Case(
        "hung",
        [
            *HUNG,
            'rank_stage:rankskew_hang_suspect:group{job_id="j",rank="5",stage="forward"} 1',
            *(
                f'rankskew_gpu_fault{{job_id="j",instance="n",rank="{rank}",gpu="0",{fault}}} 1'
                for rank in (4, 5)
                for fault in ('fault="lost"', 'fault="xid",detail="79"', 'fault="numa"')
            ),
        ],
        {"Who": {"rank 5 · forward · GPU lost": 2}},
        {"rank 5": ("job hangs", "forward")},
    ),
    "hung without a suspect": Case(
        "hung",
        [*HUNG, STUCK % (3, "sync"), STUCK % (4, "eval")],
        {"Who": {"all wait in a collective": 150}},
        {"all wait in a collective": ("", ""), "rank 4": ("stuck", "eval")},
    ),
    "rotating": Case(
        "rotating",
        [
            *JUDGED,
            'job_kind:rankskew_gpus_lost:sum{job_id="j",kind="rotating"} 1',
            'job:rankskew_threshold:value{job_id="j",name="rotating_lost_ratio"} 0.1',
        ],
        {"Who": {"a different rank in each step": 1}},
        {"a different rank in each step": ("", "")},
    ),
    **{
        state: Case(
            state,
            [
                *JUDGED,
                f'job_kind:rankskew_gpus_lost:sum{{job_id="j",kind="{state}"}} 1',
                'job:rankskew_threshold:value{job_id="j",name="gpus_lost_ratio"} 0.01',
            ],
            {"Who": {who: 1}, "Since": {"started": (NOW - 3600) * 1000}},
            {who: ("", "")},
        )
        for state, who in (("pause", "a single long stop"), ("shared", "all wait together"))
    },
    "silent": Case(
        "ranks_missing",
        [
            *JUDGED,
            'rank:rankskew_silent_seconds:max{job_id="j",rank="3",instance="n"} 40',
            REASON % "ranks_silent",
        ],
        {
            "Who": {"rank 3 is silent": 40},
            "Since": {"silent": (NOW - 40) * 1000},
            "Judged": {"ranks silent": 0},
        },
        {"rank 3": ("silent", "")},
    ),
    "unseen": Case(
        "ranks_missing",
        [
            *JUDGED,
            'job:rankskew_ranks_missing:sum{job_id="j"} 4',
            REASON % "join_incomplete",
            REASON % "ranks_missing",
        ],
        {"Who": {"4 ranks not seen": 1}, "Judged": {"ranks missing": 0}},
        {"4 ranks not seen": ("", "")},
    ),
    "exporter down": Case(
        "exporter_down",
        [
            *(each for each in JUDGED if "ranks_beating" not in each),
            'job:rankskew_ranks_beating:sum{job_id="j"} 4',
            'up{job="r",instance="n"} 0',
        ],
        {"Who": {"exporter of n": 1}, "Since": {"started": (NOW - 3600) * 1000}},
        {"exporter of n": ("", "")},
    ),
    "starting": Case(
        "starting",
        [*RUNS[:3], 'job:rankskew_starting_seconds:max{job_id="j"} 240', REASON % "no_steps"],
        {
            "GPUs lost": {"–": 0},
            "Who": {"not known yet": 1},
            "Since": {"began": 60_000},
            "Judged": {"no steps": 0},
        },
        {"not known yet": ("", "")},
    ),
    "not judgeable": Case(
        "not_judgeable",
        [*RUNS, REASON % "no_busy_time"],
        {"GPUs lost": {"–": 0}, "Who": {"cannot be known": 1}, "Judged": {"no busy time": 0}},
        {"cannot be known": ("", "")},
    ),
    "finished": Case(
        "finished",
        ['job_state:rankskew_ranks:sum{job_id="j",state="finished"} 8'],
        {
            "GPUs lost": {"–": 0},
            "Who": {"–": 1},
            "Since": {},
            "Step": {},
            "Judged": {},
            "Alerts": {"None": 0},
        },
        {"–": ("", "")},
    ),
    **{
        state: Case(
            state,
            [
                'job:rankskew_job:group{job_id="j"} 1',
                'rankskew_gpu_rank_info{job_id="j",rank="0",instance="n",source="environ"} 1',
                *(f'rankskew_gpu_fault{{job_id="j",instance="n",{each}}} 1' for each in faults),
                REASON % "no_probe",
            ],
            {"Who": {"cannot be known": 1}, "Judged": {"no probe": 0}},
            {"cannot be known": ("", "")},
        )
        for state, *faults in (
            ("stands_still", 'rank="0",fault="stands_still"'),
            ("unused_gpus", 'rank="",fault="unused"'),
            ("no_probe",),
        )
    },
}


# Panels that show a dash when a job has no figure, such as Step once it has finished.
FIGURES = {"Since", "Step", "Judged"}


def first_screen() -> list[dict[str, Any]]:
    """Return the panels of the job dashboard before its first heading."""
    [job] = [load(path)["panels"] for path in JSON_FILES if path.stem == "job"]
    return list(takewhile(lambda panel: panel["type"] != "row", job))


def shown(panel: dict[str, Any], found: Answers) -> dict[str, float]:
    """Return the names that a panel shows, with their values."""
    names: dict[str, float] = {}
    for target in panel["targets"]:
        for labels, value in found[substituted(target["expr"], "j"), NOW]:
            legend = named(target["legendFormat"], labels)
            word = STATES[legend][0] if panel["title"] == "State" else legend
            assert word not in names, f"twice in {panel['title']}: {word}"
            names[word] = value
    return names


def recorded(samples: list[str]) -> list[dict[str, str]]:
    """Return series that have each of these *samples* all the time."""
    inputs = [one.rsplit(" ", 1) for one in samples]
    return [{"series": name, "values": f"{value}x{NOW // 15}"} for name, value in inputs]


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_first_row_says_what_is_the_matter(case: Case, tmp_path: Path) -> None:
    """The panels for state, loss, who and since when show what is true, and nothing else.

    The table names the same ranks. On the first screen only the FIGURES may be empty.
    """
    exprs = [target["expr"] for panel in first_screen() for target in panel["targets"]]
    asked = [(substituted(expr, "j"), NOW) for expr in exprs]
    rules = [path for path in RULES if path.stem == "state"]
    found = answers(tmp_path, recorded(case.series), asked, rules, ["state"])
    top = [panel for panel in dashboard_panels("job") if panel["gridPos"]["y"] == 0]
    row = {panel["title"]: shown(panel, found) for panel in top}

    assert row["State"] == {STATES[case.state][0]: 1}
    for title, names in case.shown.items():
        assert row[title] == pytest.approx(names), title
    results = {
        panel["title"]: [
            found[substituted(target["expr"], "j"), NOW] for target in panel["targets"]
        ]
        for panel in first_screen()
    }
    rows, *_ = results["Who the job waits for"]
    kinds = [(row["who"], (row.get("kind", ""), row.get("stage", ""))) for row, _ in rows]
    assert sorted(kinds) == sorted(case.rows.items())
    assert {title for title, answer in results.items() if not any(answer)} <= FIGURES


def test_states_are_those_of_the_rules() -> None:
    """Each that the rule records has a word and a colour, in its order, and a case here."""
    rule = (ROOT / "alerts" / "rules" / "state.yaml").read_text()
    states = dict.fromkeys(re.findall(r'"state", "(\w+)"', rule))

    assert list(states) == list(STATES)
    assert {case.state for case in CASES.values()} == set(STATES)


# ---- The fleet -----------------------------------------------------------------------------------

# Clusters a and b each have a job named big, and b has dark; other jobs are in no cluster.
BIG_A, BIG_B, DARK = (
    'cluster="a",job_id="big"',
    'cluster="b",job_id="big"',
    'cluster="b",job_id="dark"',
)
RANK_7, RANK_2 = f'{BIG_B},rank="7",instance="n1:9917"', f'{BIG_A},rank="2",instance="n2:9917"'
FLEET = [
    *(
        f'job:rankskew_state:info{{{job},state="{state}"}} 1'
        for job, state in (
            (BIG_A, "straggler"),
            (BIG_B, "hung"),
            (DARK, "not_judgeable"),
            ('job_id="well"', "healthy"),
            ('job_id="lone"', "ranks_missing"),
        )
    ),
    'rank:rankskew_silent_seconds:max{job_id="lone",rank="3",instance="n4:9917"} 40',
    'rankskew_node_ranks{job_id="lone",state="silent",instance="n4:9917"} 1',
    f"job:rankskew_slowdown:max{{{BIG_A}}} 1.5",
    f"job:rankskew_slowdown:max{{{BIG_B}}} 1",
    f"job:rankskew_gpus_lost:sum{{{BIG_A}}} 3",
    f"job:rankskew_gpus_lost:sum{{{BIG_B}}} 8",
    'job:rankskew_gpus_lost:sum{job_id="well"} 0.5',
    f"job:rankskew_hung:seconds{{{BIG_B}}} 120",
    f'rank_stage:rankskew_hang_suspect:group{{{RANK_7},stage="frozen"}} 1',
    # Its GPU is lost, which is reported along with an XID error.
    f'rankskew_gpu_fault{{{RANK_7},fault="lost",gpu_uuid="GPU-1"}} 1',
    f'rankskew_gpu_fault{{{RANK_7},fault="xid",detail="79",gpu_uuid="GPU-1"}} 1',
    f'rank:rankskew_late:ratio{{{RANK_2},nodename="n2",kind="node",stage="data"}} 0.3',
    f'rankskew_late_cause_info{{{RANK_2},cause="input",detail="nfs",'
    'sentence="an operation on /data (nfs) takes 90 ms, its peers\' 3"} 1',
    f"rank:rankskew_gpus_lost:sum{{{RANK_2}}} 3",
    # Late, but not worth anybody's time.
    'rank:rankskew_late:ratio{job_id="well",rank="1",instance="n3:9917",kind="mild",stage="data"} '
    "0.03",
    # no_sync explains join_incomplete and is shown, although it sorts after it.
    f'job_reason:rankskew_not_judgeable:bool{{{DARK},reason="no_sync"}} 1',
    f'job_reason:rankskew_not_judgeable:bool{{{DARK},reason="join_incomplete"}} 1',
]
# What the queries of the table of jobs yield: urgency, whom a job waits for, why, and slowdown.
JOBS: dict[str, dict[str, float]] = {
    "A": {
        '{key="b/big", cluster="b", to_cluster="b", job_id="big", state="hung"}': 1e9 + 8,
        '{key="b/dark", cluster="b", to_cluster="b", job_id="dark", state="not_judgeable"}': 1e6,
        '{key="/lone", to_cluster="All", job_id="lone", state="ranks_missing"}': 1e6,
        '{key="a/big", cluster="a", to_cluster="a", job_id="big", state="straggler"}': 3,
        '{key="/well", to_cluster="All", job_id="well", state="healthy"}': 0.5,
    },
    "E": {
        '{key="b/big", rank="7", who="rank 7 · frozen"}': 1,
        '{key="a/big", rank="2", who="node n2 · data"}': 1,
    },
    "F": {
        '{key="b/big", cause="GPU: lost"}': 1,
        '{key="b/dark", cause="no_sync"}': 1,
        '{key="/lone", cause="1 rank gone silent"}': 1,
        '{key="a/big", cause="loader: an operation on /data (nfs) takes 90 ms, its peers\' 3"}': 1,
    },
    # A hung job finishes no step, so it has no slowdown.
    "H": {'{key="a/big"}': 1.5},
}


def test_jobs_by_urgency_and_whom_they_wait_for(tmp_path: Path) -> None:
    """Hung jobs come first, then unjudged ones, then the others by GPUs lost."""
    # Jobs of different clusters, or of none, stay apart; a healthy job waits for nobody.
    exprs = {
        target.ref: target.substituted("")
        for target in targets()
        if (target.dashboard, target.panel) == ("fleet", "Jobs")
    }
    # Of words the table shows no value.
    exprs |= {ref: f"0 * ({exprs[ref]}) + 1" for ref in "EF"}
    expected = [Expect(exprs[ref], NOW, samples) for ref, samples in JOBS.items()]

    assert_rules(tmp_path, recorded(FLEET), expected, groups=())
