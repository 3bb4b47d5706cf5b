"""What `top` and `diagnose` make of the series that the rules record."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from fleet_simulator.faults import parse
from fleet_simulator.plan import equal_jobs
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus
from rankskew.diagnose.from_prometheus import read_prometheus
from rankskew.diagnose.model import CannotTell
from rankskew.top.from_prometheus import NO_EXPORTER, NO_RULES, read_fleet
from rankskew.top.model import NO_RANK, UNKNOWN, FleetStatus, JobStatus
from tests.alerts.promtool import answers
from tests.fleet_simulator.scraped import SCRAPE_SECONDS, input_series
from tests.printed import assert_golden
from tests.rankskew import fake_prometheus as fake
from tests.rankskew.fake_prometheus import NOW, WHO, Series, recorded, series, straggler
from tests.rankskew.servers import Answer, Sent, json_answer, serving
from tests.rankskew.views import both, drawn


def read(*samples: Series, cluster: str | None = None, job_id: str | None = None) -> FleetStatus:
    """Return the fleet that a Prometheus with *samples* has."""
    with recorded(*samples).serve() as url:
        return read_fleet(Prometheus(url), cluster, job_id)


def told(*samples: Series) -> str:
    """Return what both print of the only job of *samples*."""
    with recorded(*samples).serve() as url:
        return both(read_fleet(Prometheus(url)), read_prometheus(url, None, None, None))


# ---- One job -------------------------------------------------------------------------------------


def at_other(samples: Sequence[Series], **labels: str) -> list[Series]:
    """Return *samples* with other labels for where they come from."""
    return [(each | labels if "instance" in each else each, value) for each, value in samples]


def without(samples: Sequence[Series], name: str) -> list[Series]:
    return [each for each in samples if name not in each[0]["__name__"]]


def another(rank: int, gpus_lost: float, kind: str = "persistent") -> list[Series]:
    """Return what the rules record of one more late rank."""
    who = WHO | {"rank": str(rank)}
    return [
        series("rank:rankskew_late:ratio", 0.2, kind=kind, stage="forward", **who),
        series("rank:rankskew_gpus_lost:sum", gpus_lost, **who),
        series("rank:rankskew_told_gpus_lost:sum", gpus_lost, **who),
    ]


def slow_node(causes: Mapping[int, str]) -> list[Series]:
    """Return a job with a slow node: rank 5 is the costliest."""
    samples = fake.job(state="slow_node")
    samples.append(series("job_severity:rankskew_told:max5m", 0.05, severity="critical"))
    for rank, cause in causes.items():
        samples += another(rank, 0.9 if rank == 5 else 0.2, "node")
        samples += fake.cause(rank, cause, 0.8, detail="")
    return samples


def duty() -> list[Series]:
    """Return a job that waits for rank 0, which saves for all; no straggler is needed for it."""
    who = WHO | {"rank": "0"}
    return [
        *fake.job(state="straggler"),
        series("rank:rankskew_late:ratio", 0.54, kind="duty", stage="checkpoint", **who),
        series("rank:rankskew_gpus_lost:sum", 1.05, **who),
        series("rank:rankskew_told_gpus_lost:sum", 1.05, kind="duty", stage="checkpoint", **who),
        series("rankskew_late_pause_steps", 25, **who),
        series("rankskew_late_pause_seconds", 1.01, sentence="of the exporter", **who),
    ]


def of_state(state: str, *samples: Series) -> list[Series]:
    return [*fake.job(state=state), *fake.rank(6, "n2:9917"), *samples]


def reasons(*names: str, job_id: str = "llama") -> list[Series]:
    series_name = "job_reason:rankskew_not_judgeable:bool"
    return [series(series_name, reason=name, job_id=job_id) for name in names]


def alert(name: str, state: str = "firing", severity: str = "warning", **labels: str) -> Series:
    return series("ALERTS", alertname=name, alertstate=state, severity=severity, **labels)


def changed(scope: str, *sets: str) -> list[Series]:
    """Return a job that became slower, as exporters repeat it, and what began when."""
    figures = {"ratio": 2.5, "gpus": 0.8, "since_timestamp_seconds": NOW - 720.0}
    why = {
        "n2:9917": ("network", "a port is slow"),
        "n3:9917": ("input", "reads take 8 ms"),
        "n1:9917": ("input", "reads take 9 ms"),
    }
    it = {"scope": scope, "stage": "data"}
    of = {"scope": "all", "stage": "data", "detail": ""}
    began = {"JobSlower": 700, "NetworkErrors": 900, "GpuThrottled": 3000}
    return [
        *fake.job(),
        series("job:rankskew_run_seconds:max", 7000.0),
        *(
            series("ALERTS_FOR_STATE", NOW - ago, alertname=f"Rankskew{name}")
            for name, ago in began.items()
        ),
        *(
            series(f"rankskew_job_change_{name}", value, instance=node, **it, in_common=each)
            for name, value in figures.items()
            for node in ("n2:9917", "n3:9917")
            for each in sets or ("",)
        ),
        *(
            series(
                "rankskew_job_change_cause_info", instance=node, cause=cause, sentence=said, **of
            )
            for node, (cause, said) in why.items()
        ),
    ]


SUSPECT: Final = series("rank_stage:rankskew_hang_suspect:group", stage="data", **WHO)
FINISHED: Final = series("rank_stage:rankskew_hang_suspect:group", stage="finished", **WHO)
HUNG: Final = series("job:rankskew_hung:seconds", 300.0)
SILENT: Final = series("rank:rankskew_silent_seconds:max", 75.0, **WHO)
MISSING: Final = series("job:rankskew_ranks_missing:sum", 2)
DOWN: Final = series("node:rankskew_exporter_down:group", instance="n2:9917")
UNPROBED: Final = series("rankskew_gpu_rank_info", source="environ", **WHO)
STARTED: Final = series("job:rankskew_run_seconds:max", 60.0)
LONG_AGO: Final = series("job:rankskew_starting_seconds:max", 1000.0)
# NaN is a division by zero in a rule.
NOTHING: Final = series("job:rankskew_slowdown:max", float("nan"))
NODE_ONLY: Final = series("rankskew_job_judge_info", judge="node")
NAME: Final = series(
    "rankskew_exporter_build_info", nodename="gpu-2", job_id="", instance="10.0.0.2:9917"
)
NOT_KNOWN: Final = fake.cause(cause="unknown", share=0.0, detail="")
LATER_RELEASE: Final = fake.cause(cause="gravity", detail="")
GPU: Final = WHO | {"gpu": "2", "gpu_uuid": "GPU-6", "nodename": "gpu-2"}
OF_A_PEER: Final = alert("RankskewNvlinkDown", **WHO | {"rank": "7"})
PENDING: Final = {"state": "pending", "rank": "6", "instance": "n2:9917"}
STORIES: Final[Mapping[str, Sequence[Series]]] = {
    # Where it is, since when, its line of code, its cause, and the commands with its process.
    "late rank": [*straggler(), NOTHING],
    "node with a name": [*at_other(straggler(), instance="10.0.0.2:9917"), NAME],
    # One without advice has that on an unknown one.
    "no cause yet": without(straggler(), "cause"),
    "cause not known": [*without(straggler(), "cause"), *NOT_KNOWN],
    "cause of a later release": [*without(straggler(), "cause"), *LATER_RELEASE],
    # The costliest is mended first; the others are named. Who was compared is told.
    "another late rank": [*straggler(), *another(3, 0.1), NODE_ONLY],
    # The rules decide whether a rank costs enough, or all of them together.
    "cheap rank": without(straggler(), "told_gpus"),
    "cheap ranks": without(straggler(), "severity"),
    "duty": duty(),
    # One rank may have another cause besides; where they are as many, the costliest's counts.
    "slow node": slow_node({4: "cpu", 5: "network", 6: "cpu"}),
    "slow node of two causes": slow_node({4: "cpu", 5: "network"}),
    "hung": of_state("hung", SUSPECT, HUNG),
    "hung on one that has finished": of_state("hung", FINISHED, HUNG),
    # A rank that was late before is not what a job hangs on.
    "hung together": of_state("hung", HUNG, *fake.late()),
    "exporter down": of_state("exporter_down", DOWN),
    "ranks silent": of_state("ranks_missing", SILENT, MISSING),
    "ranks without the probe": of_state("ranks_missing", UNPROBED),
    "ranks missing": of_state("ranks_missing"),
    # Its own ranks are silent for longer than it runs: they are of the run before.
    "ranks missing after a restart": of_state(
        "ranks_missing", STARTED, series("rankskew_rank_silent_seconds", 2400.0, **WHO)
    ),
    "starting": of_state("starting", STARTED),
    "slow start": of_state("starting", LONG_AGO),
    "not judgeable": of_state("not_judgeable", *reasons("no_sync")),
    "no probe": of_state("no_probe"),
    "stands still": of_state("stands_still"),
    "unused GPUs": of_state("unused_gpus"),
    "finished": of_state("finished"),
    "late in turn": [*fake.job(), *fake.losses(rotating=2.0)],
    "communication": [*fake.job(), *fake.losses(common=2.5)],
    "heavier group": [*fake.job(), *fake.losses(group=1.2)],
    "balanced": [*fake.job(), *fake.losses(group=0.7, common=1.9, rotating=0.2)],
    "alert of a node and a later release": [
        *fake.job(),
        alert("RankskewNewThing", instance="n2:9917"),
    ],
    "alert of the job": [*fake.job(), alert("RankskewNewThing")],
    # What has just begun may be over soon, unless it is urgent.
    "pending alerts": [
        *fake.job(),
        alert("RankskewNumaMismatch", severity="info", **PENDING),
        alert("RankskewNvlinkDown", **PENDING),
    ],
    # A job may be healthy on a GPU that is about to fail; of a late rank it is a fact.
    "alert of a GPU": [*fake.job(), alert("RankskewGpuEccErrors", **GPU)],
    "alert of a late rank": [*straggler(), alert("RankskewGpuThrottled", **WHO), OF_A_PEER],
    "slower": changed("all"),
    "some ranks slower": changed("set", "rack r1", "rack r2"),
}


def test_stories_are_the_golden_ones() -> None:
    """What is wrong, where, since when, why, what it costs and what to do first.

    Nothing of it is derived here: what the rules and the exporters say is repeated.
    """
    texts = {name: told(*story) for name, story in STORIES.items()}
    # After a restart elsewhere the series of the dead process remain for a while.
    moved = [*fake.rank(0, age=500.0), *fake.rank(0, "n9:9917")]
    fleet = read(*straggler(), *moved, *fake.rank(1), *fake.rank(2))
    assert_golden("from_prometheus", texts | {"ranks": drawn(fleet)})


# ---- A fleet -------------------------------------------------------------------------------------


def test_fleet_takes_two_queries_and_the_most_urgent_job_comes_first() -> None:
    """Hung, then by GPUs lost, then what cannot be judged, then healthy, then ended.

    However many jobs there are, nothing is asked of the series of every rank. A state of a newer
    release is a question mark.
    """
    states = ("no_probe", "healthy", "newer", "not_judgeable", "straggler", "hung", "ranks_missing")
    samples = [each for state in states for each in fake.job(state, state)]
    prometheus = recorded(*samples, *fake.job("costly", "rotating", gpus_lost=2.4))
    with prometheus.serve() as url:
        jobs = read_fleet(Prometheus(url)).jobs
    queries = [form["query"] for form in prometheus.asked]
    known = {job.job_id: job for job in jobs}

    assert [job.job_id for job in jobs] == [
        *("hung", "costly", "ranks_missing", "straggler"),
        *("not_judgeable", "newer", "healthy", "no_probe"),
    ]
    assert (known["newer"].state, known["newer"].sentence) == (UNKNOWN, "")
    assert len(queries) == 2
    assert not any("rankskew_steps_total" in query for query in queries)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("join_incomplete", "off", "ranks_missing"), "off"),
        (("join_incomplete", "ranks_missing", "ranks_silent"), "ranks_silent"),
        (("no_steps", "ranks_without_probe", "ranks_missing"), "ranks_without_probe"),
        (("no_sync", "single_rank"), "single_rank"),
        (("of_a_newer_release", "warming_up"), "warming_up"),
        (("of_a_newer_release",), "of_a_newer_release"),
    ],
)
def test_reason_that_explains_the_others_is_told(names: Sequence[str], told: str) -> None:
    """A job has several reasons at once; the first letter of one says nothing about it."""
    (job,) = read(*fake.job(state="not_judgeable"), *reasons(*names)).jobs

    assert job.reason == told


ELSEWHERE = [*fake.job("b"), *fake.job("a"), *fake.job("a", cluster="us")]


@pytest.mark.parametrize(
    ("samples", "asked", "trouble"),
    [
        ([series("rankskew_node_ranks")], {}, NO_RULES),
        ([series("rankskew_exporter_build_info")], {}, NO_RANK),
        ([series("up")], {}, NO_EXPORTER),
        (ELSEWHERE, {"cluster": "mars"}, "No exporter has the label cluster='mars'."),
        (ELSEWHERE, {"job_id": "c"}, "There is no job 'c'; there are: a, b."),
        (ELSEWHERE, {"job_id": "a"}, "Several clusters have a job 'a'; give one: --cluster 'eu'."),
    ],
)
def test_why_there_is_no_job(
    samples: Sequence[Series], asked: dict[str, str], trouble: str
) -> None:
    """No rules, no rank yet, no exporter, or a misspelt name have different remedies."""
    assert read(*samples, **asked).troubles == [trouble]
    assert [job.cluster for job in read(*ELSEWHERE, cluster="us").jobs] == ["us"]


def test_what_cannot_be_diagnosed_is_one_sentence() -> None:
    """Several jobs, or a time without any."""
    with recorded(*fake.job("b"), *fake.job("a")).serve() as url, pytest.raises(CannotTell) as jobs:
        read_prometheus(url, None, None, None)
    with recorded().serve() as url, pytest.raises(CannotTell) as time:
        read_prometheus(url, None, None, 100.0)

    assert str(jobs.value) == "There are 2 jobs; name one with --job: a, b."
    assert str(time.value).endswith("recorded nothing of any job at 1970-01-01 00:01:40 UTC.")


def test_server_that_dies_halfway_is_no_healthy_job() -> None:
    prometheus = recorded(*straggler())

    def dying(sent: Sent) -> Answer:
        if len(prometheus.asked) > 6:
            return 500, "text/plain", b""
        return prometheus.answer(sent)

    with serving(dying) as url, pytest.raises(Trouble, match="answers 500"):
        read_prometheus(url, None, None, None)


def test_rank_without_a_cost_is_asked_for(tmp_path: Path) -> None:
    """As one that is late where no wait is measured."""
    asked: list[str] = []

    def answer(sent: Sent) -> Answer:
        asked.append(sent.form["query"])
        return json_answer({"status": "success", "data": {"result": []}})

    with serving(answer) as url:
        read_fleet(Prometheus(url))
    (query,) = (each for each in asked if "topk" in each)
    late = 'rank:rankskew_late:ratio{job_id="j",rank="3",instance="n",kind="unsynced"}'
    found = answers(tmp_path, [{"series": late, "values": "0.3x4"}], [(query, 15.0)])
    assert [labels["rank"] for labels, _ in found[query, 15.0]] == ["3"]


# ---- The queries, answered by Prometheus' own engine on what the rules make of simulated jobs ----

SCRAPES: Final = 13
END: Final = float((SCRAPES - 1) * SCRAPE_SECONDS)
LATE_JOB, STUCK_JOB = "sim-0", "sim-1"


def simulated(folder: Path) -> Mapping[str, JobStatus]:
    """Return two jobs, each with its ranks, as a Prometheus with the rules would tell them.

    promtool answers all that is asked at a time; what is asked next depends on it.
    """
    faults = [parse("loader:node=1,gpu=2"), parse("hang:node=3,gpu=1")]
    scraped = input_series(equal_jobs(4, 4, 2, faults), folder / "fleet", SCRAPES, "simulated")
    known: dict[str, list[tuple[dict[str, str], float]]] = {}
    unknown: set[str] = set()

    def answer(sent: Sent) -> Answer:
        query = sent.form["query"]
        if query not in known:
            unknown.add(query)
        result: list[dict[str, Any]] = [
            {"metric": labels, "value": [END, str(value)]} for labels, value in known.get(query, ())
        ]
        return json_answer({"status": "success", "data": {"result": result}})

    with serving(answer) as url:
        while True:
            names = (LATE_JOB, STUCK_JOB)
            fleets = {name: read_fleet(Prometheus(url), job_id=name) for name in names}
            if not unknown:
                return {name: fleet.jobs[0] for name, fleet in fleets.items()}
            found = answers(folder, scraped, [(query, END) for query in unknown])
            known |= {query: samples for (query, _), samples in found.items()}
            unknown.clear()


def test_late_and_stuck_ranks_are_found_by_the_queries(tmp_path: Path) -> None:
    """Rank, stage, cause, cost and what the ranks do are those that were simulated.

    While a job hangs there are no rates, but its ranks are shown with what they are in.
    """
    jobs = simulated(tmp_path)
    slow, hung = jobs[LATE_JOB], jobs[STUCK_JOB]
    late, peer = slow.ranks[:2]
    stuck, waiting = hung.ranks[:2]

    assert slow.sentence.startswith("Rank 6 is slow loading data; 1.6")
    assert (slow.state, slow.culprit) == ("straggler", (6, "data"))
    assert slow.cause == "loader (workers at their limit)"
    assert slow.gpus_lost == pytest.approx(2, abs=0.3)
    assert slow.cost_per_hour is None  # Nobody has set a price.
    assert [rank.rank for rank in slow.ranks] == [6, 0, 1, 2, 3, 4, 5, 7]
    assert (late.node, late.gpu, late.local_rank) == ("sim-01:9917", "2", "2")
    assert late.pid is not None
    assert (late.own_seconds or 0.0) > (peer.own_seconds or 0.0) + 0.1
    assert (late.wait_seconds or 0.0) < (peer.wait_seconds or 0.0)
    assert hung.sentence.endswith("rank 5 on sim-03:9917 is stuck in data.")
    assert (hung.state, hung.culprit, hung.gpus_lost) == ("hung", (5, "data"), 8.0)
    assert (stuck.rank, stuck.stage, stuck.stage_seconds) == (5, "data", None)
    assert waiting.stage == "sync"
