"""What `top` and `diagnose` make of the series that the rules record."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleet_simulator.faults import parse
from fleet_simulator.fleet import Fleet, fleet_app
from fleet_simulator.plan import equal_jobs
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus, selector
from rankskew.diagnose.findings import NO_CAUSE
from rankskew.diagnose.from_prometheus import read_prometheus
from rankskew.diagnose.model import BALANCED, CANNOT_TELL, FOUND, CannotTell, Report
from rankskew.diagnose.render import facts
from rankskew.top.from_prometheus import NO_EXPORTER, NO_RULES, read_fleet
from rankskew.top.model import NO_RANK, STATES, UNKNOWN, FleetStatus, JobStatus
from tests.alerts.promtool import answers
from tests.exporter.asgi import ask
from tests.exporter.node import Clock
from tests.rankskew import fake_prometheus as fake
from tests.rankskew.fake_prometheus import NOW, WHO, Series, recorded, series, straggler
from tests.rankskew.servers import Answer, Sent, json_answer, serving


def read(*samples: Series, cluster: str | None = None, job_id: str | None = None) -> FleetStatus:
    """Return the fleet that a Prometheus with *samples* has."""
    with recorded(*samples).serve() as url:
        return read_fleet(Prometheus(url), cluster, job_id)


def diagnosed(*samples: Series, job_id: str | None = None, at: float | None = None) -> Report:
    with recorded(*samples).serve() as url:
        return read_prometheus(url, None, job_id, at)


def alert(name: str, state: str = "firing", severity: str = "warning", **labels: str) -> Series:
    return series("ALERTS", alertname=name, alertstate=state, severity=severity, **labels)


# ---- A late rank ---------------------------------------------------------------------------------


def test_late_rank_is_told_with_all_that_is_known() -> None:
    """Where it is, since when, its line of code, its cause, and the commands with its process.

    The cause is the exporter's, word for word. NaN, a division by zero in a rule, is no reading.
    """
    peers = [each for number in range(4) for each in fake.rank(number)]
    nan = series("job:rankskew_slowdown:max", float("nan"))
    (job,) = read(*straggler(), *peers, nan).jobs
    report = diagnosed(*straggler())
    (finding,) = report.findings

    assert (job.state, job.culprit, job.since_seconds) == ("straggler", (6, "data"), 240.0)
    assert (job.gpus_lost, job.world_size, job.cost_per_hour) == (2.0, 8, 0.75)
    assert (job.steps, job.slowdown) == (1200, None)
    assert job.lost_by_kind == {"persistent": 1.6, "rotating": 0.06, "common": 0.34}
    assert job.cause == "loader (workers at their limit)"
    assert job.sentence == "Rank 6 is slow loading data; 1.65 of 8 GPUs wait for it."
    assert job.details == (
        "Cause: 3 of its workers never wait, 0 of its peers' (97% of the delay).",
    )
    assert [rank.rank for rank in job.ranks] == [6, 0, 1, 2, 3]
    late = job.ranks[0]
    assert (late.node, late.pid, late.gpu, late.local_rank) == ("n2:9917", 4006, "2", "2")
    assert late.stage_seconds == {"data": 0.1, "forward": 0.2, "sync": 0.24}
    assert late.report_age_seconds == 3.0
    assert late.late == job.late[0]

    assert (report.outcome, report.state, report.cost_per_hour) == (FOUND, "straggler", 0.75)
    assert (finding.rank, finding.stage, finding.since_seconds) == (6, "data", 240.0)
    assert (finding.place.node, finding.place.pid, finding.place.gpu) == ("n2", 4006, "2")
    cause = finding.cause
    assert cause == job.late[0].cause
    assert cause is not None
    assert (cause.cause, cause.detail, cause.share) == ("input", "workers", 0.97)
    assert (cause.figure, cause.value, cause.peers_value) == ("saturated_workers", 3.0, 0.0)
    assert [line.place for line in finding.lines] == ["f (c.py:1)"]
    assert finding.first == job.first_action == "`py-spy dump --pid 4006` on n2"
    assert finding.steps[0].do.startswith("`py-spy dump --pid 4006` on n2")
    assert finding.links[0].endswith("docs/playbook.md#input")
    assert report.loss is not None
    assert [part.gpus for part in report.loss.parts] == [1.6, 0.06, 0.34]
    (rank,) = report.loss.parts[0].parts
    assert sum(part.gpus for part in rank.parts) == pytest.approx(1.6)
    assert report.unjudged == ()


def test_node_has_its_name_instead_of_its_address() -> None:
    """As what is read and typed has the name; nobody looks up an address at night."""
    address = {"instance": "10.0.0.2:9917"}
    samples = [
        (labels | address if "instance" in labels else labels, value)
        for labels, value in straggler()
    ]
    name = series("rankskew_exporter_build_info", nodename="gpu-2", job_id="", **address)
    (finding,) = diagnosed(*samples, name).findings

    assert finding.place.node == "gpu-2"
    assert finding.steps[0].do.startswith("`py-spy dump --pid 4006` on gpu-2")
    assert dict(facts(finding, NOW))["Where"].startswith("gpu-2, GPU 2, ")


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        pytest.param([], "unknown", id="none yet"),
        pytest.param(fake.cause(cause="gravity", detail=""), "gravity", id="of a later release"),
        pytest.param(fake.cause(cause="unknown", share=0.0, detail=""), "unknown", id="not known"),
    ],
)
def test_cause_without_advice_has_that_on_an_unknown_one(cause: list[Series], told: str) -> None:
    """Nothing is derived here: what the exporter says is repeated."""
    samples = [each for each in straggler() if "cause" not in each[0]["__name__"]]
    (finding,) = diagnosed(*samples, *cause).findings

    assert finding.what == "unknown"
    assert finding.cause is not None
    assert (finding.cause.cause, finding.cause.detail) == (told, "")
    assert (finding.cause == NO_CAUSE) == (not cause)
    assert str(finding.first).startswith("`py-spy dump --pid 4006`")


def test_rank_that_costs_too_little_is_late_but_not_told() -> None:
    """The rules decide it, as the page does: one that costs little, or all of them together."""
    series_of = fake.late()
    little = [each for each in series_of if "told_gpus" not in each[0]["__name__"]]
    cheap = [each for each in series_of if "severity" not in each[0]["__name__"]]
    jobs = [read(*fake.job(), *samples).jobs[0] for samples in (series_of, little, cheap)]

    assert [job.culprit for job in jobs] == [(6, "data"), None, None]
    assert [late.is_called_late for job in jobs for late in job.late] == [True, False, False]


def test_costly_duty_is_told_as_what_it_is() -> None:
    """With its period and length, in the words of the page; no straggler is needed for it."""
    who = WHO | {"rank": "0"}
    samples = [
        *fake.job(state="straggler"),
        series("rank:rankskew_late:ratio", 0.54, kind="duty", stage="checkpoint", **who),
        series("rank:rankskew_gpus_lost:sum", 1.05, **who),
        series("rank:rankskew_told_gpus_lost:sum", 1.05, kind="duty", stage="checkpoint", **who),
        series("rankskew_late_pause_steps", 25, **who),
        series("rankskew_late_pause_seconds", 1.01, sentence="of the exporter", **who),
    ]
    (job,) = read(*samples).jobs

    assert job.sentence == "Rank 0 saves every 25 steps for 1.0 s; 1.05 of 8 GPUs wait for it."
    assert job.culprit == (0, "checkpoint")


def another(rank: int, gpus_lost: float, kind: str, stage: str) -> list[Series]:
    """Return what the rules record of one more late rank."""
    who = WHO | {"rank": str(rank)}
    return [
        series("rank:rankskew_late:ratio", 0.2, kind=kind, stage=stage, **who),
        series("rank:rankskew_gpus_lost:sum", gpus_lost, **who),
        series("rank:rankskew_told_gpus_lost:sum", gpus_lost, **who),
    ]


@pytest.mark.parametrize(
    ("why", "told"),
    [({4: "cpu", 5: "network", 6: "cpu"}, "cpu"), ({4: "cpu", 5: "network"}, "network")],
)
def test_slow_node_is_one_finding_with_the_cause_of_most_of_its_ranks(
    why: dict[int, str], told: str
) -> None:
    """One of them may have another one besides; where they are as many, the costliest's counts."""
    gpus = {rank: 0.9 if rank == 5 else 0.2 for rank in why}
    samples = [series("job_severity:rankskew_told:max5m", 0.05, severity="critical")]
    for rank, lost in gpus.items():
        samples += another(rank, lost, "node", "forward")
        samples += fake.cause(rank, why[rank], 0.8, detail="")
    (finding,) = diagnosed(*fake.job(state="slow_node"), *samples).findings

    assert (finding.rank, finding.ranks, finding.place.node) == (None, tuple(why), "n2")
    assert finding.what == told
    assert finding.gpus_lost == pytest.approx(sum(gpus.values()))


def test_late_rank_that_costs_a_tenth_of_another_waits() -> None:
    """The costliest is mended first; the others are named. Who was compared is told."""
    node_only = series("rankskew_job_judge_info", judge="node")
    report = diagnosed(*straggler(), *another(3, 0.1, "persistent", "data"), node_only)

    assert [finding.rank for finding in report.findings] == [6]
    assert report.more == (
        "Late as well: rank 3. They cost less: mend the above first, and look again.",
    )
    assert "those of its node only" in report.unjudged[0]


# ---- Other states --------------------------------------------------------------------------------


def reasons(*names: str, job_id: str = "llama") -> list[Series]:
    series_name = "job_reason:rankskew_not_judgeable:bool"
    return [series(series_name, reason=name, job_id=job_id) for name in names]


SUSPECT: Final = series("rank_stage:rankskew_hang_suspect:group", stage="data", **WHO)
FINISHED: Final = series("rank_stage:rankskew_hang_suspect:group", stage="finished", **WHO)
HUNG: Final = series("job:rankskew_hung:seconds", 300.0)
SILENT: Final = series("rank:rankskew_silent_seconds:max", 75.0, **WHO)
MISSING: Final = series("job:rankskew_ranks_missing:sum", 2)
DOWN: Final = series("node:rankskew_exporter_down:group", instance="n2:9917")
UNPROBED: Final = series("rankskew_gpu_rank_info", source="environ", **WHO)
STARTED: Final = series("job:rankskew_run_seconds:max", 60.0)
LONG_AGO: Final = series("job:rankskew_starting_seconds:max", 1000.0)
STUCK: Final = "No step for 5 min: rank 6 on n2:9917 is stuck in data."
TOGETHER: Final = "No step for 5 min: all ranks wait in a collective."
UNSEEN: Final = "2 of 8 ranks are not seen by any exporter."
GONE: Final = "Ranks have gone silent: dead, stopped, or unable to reach their exporter."


@pytest.mark.parametrize(
    ("state", "samples", "sentence", "what", "first", "outcome"),
    [
        ("hung", [SUSPECT, HUNG], STUCK, "hung", "`py-spy dump --pid 4006` on n2", FOUND),
        ("hung", [FINISHED, HUNG], None, "hung_finished", "read its log on n2", FOUND),
        ("hung", [HUNG], TOGETHER, "hung_together", "`py-spy dump --pid PID` of each rank", FOUND),
        # A rank that was late before is not what a job hangs on.
        ("hung", [HUNG, *fake.late()], TOGETHER, "hung_together", "`py-spy dump --pid PID`", FOUND),
        (
            *("exporter_down", [DOWN]),
            "An exporter on n2:9917 does not answer, so what its ranks do is not known.",
            *("exporter_down", "`systemctl status", FOUND),
        ),
        ("ranks_missing", [SILENT, MISSING], UNSEEN, "ranks_silent", "`ps -p 4006`, then", FOUND),
        ("ranks_missing", [UNPROBED], GONE, "ranks_without_probe", "list them: `rank", FOUND),
        ("ranks_missing", [], GONE, "ranks_missing", "compare the job's nodes", FOUND),
        ("starting", [STARTED], None, "starting", "wait", CANNOT_TELL),
        ("starting", [LONG_AGO], None, "slow_start", "`py-spy dump --pid 4006` on n2", FOUND),
        (
            *("not_judgeable", reasons("no_sync"), "Cannot judge this job: no sync."),
            *("no_sync", "mark the coll", CANNOT_TELL),
        ),
        ("not_judgeable", reasons("off"), None, "off", "`rankskew control llama", CANNOT_TELL),
        ("no_probe", [], None, "no_probe", "start the job with the probe", CANNOT_TELL),
        ("finished", [], None, "finished", "ask about a time", CANNOT_TELL),
    ],
)
def test_every_other_state_says_what_to_do_first(
    state: str, samples: list[Series], sentence: str | None, what: str, first: str, outcome: str
) -> None:
    """What it is, in a sentence; which rank, what to do first, and whether anything is told."""
    those = [*fake.job(state=state), *fake.rank(6, "n2:9917"), *samples]
    (job,) = read(*those).jobs
    report = diagnosed(*those)

    assert job.state == state
    assert job.sentence == (sentence or job.sentence)
    assert (job.culprit is not None) == (what in ("hung", "hung_finished"))
    assert report.findings[0].what == what
    assert str(report.findings[0].first).startswith(first)
    assert report.outcome == outcome


def test_each_state_has_a_sentence() -> None:
    """Also where nothing else is known; one of a newer release is a question mark."""
    known = [state for state in STATES if state != UNKNOWN]
    samples = [each for state in known for each in fake.job(state, state)]
    jobs = read(*samples, *fake.job("new", "of_a_newer_release")).jobs

    said = {job.job_id: (job.state, job.sentence[-1:]) for job in jobs}
    assert said == {state: (state, ".") for state in known} | {"new": (UNKNOWN, "")}


def test_reason_that_explains_the_others_is_told() -> None:
    """A job has several reasons at once; the first letter of one says nothing about it."""
    told = {
        "off": ("join_incomplete", "off", "ranks_missing"),
        "ranks_silent": ("join_incomplete", "ranks_missing", "ranks_silent"),
        "ranks_without_probe": ("no_steps", "ranks_without_probe", "ranks_missing"),
        "single_rank": ("no_sync", "single_rank"),
        "warming_up": ("of_a_newer_release", "warming_up"),
        "of_a_newer_release": ("of_a_newer_release",),
    }
    jobs = read(
        *(each for name in told for each in fake.job(name, "not_judgeable")),
        *(each for name, names in told.items() for each in reasons(*names, job_id=name)),
    ).jobs

    assert {job.job_id: job.reason for job in jobs} == {name: name for name in told}


@pytest.mark.parametrize(
    ("kinds", "what"),
    [
        ({"rotating": 2.0}, "rotating"),
        ({"common": 2.5}, "common"),
        ({"group": 1.2}, "group"),
        ({"group": 0.7, "common": 1.9, "rotating": 0.7}, None),
    ],
)
def test_loss_without_a_late_rank(kinds: dict[str, float], what: str | None) -> None:
    report = diagnosed(*fake.job(), *fake.losses(**kinds))

    assert [finding.what for finding in report.findings] == ([what] if what else [])
    assert report.outcome == (FOUND if what else BALANCED)


PENDING: Final = {"state": "pending", "rank": "6", "instance": "n2:9917"}


@pytest.mark.parametrize(
    ("alerts", "what", "sentence"),
    [
        pytest.param(
            [alert("RankskewNewThing", instance="n2:9917")],
            *("unknown", "Node n2: new thing."),
            id="of a node, and of another release",
        ),
        pytest.param(
            [alert("RankskewNewThing")], "unknown", "The job: new thing.", id="of the job"
        ),
        pytest.param(
            [
                alert("RankskewNumaMismatch", severity="info", **PENDING),
                alert("RankskewNvlinkDown", **PENDING),
            ],
            *("nvlink_down", "Rank 6 on n2: "),
            id="information only when it fires",
        ),
    ],
)
def test_alert_is_a_finding(alerts: list[Series], what: str, sentence: str) -> None:
    """What has just begun may be over soon, unless it is urgent."""
    (finding,) = diagnosed(*fake.job(), *alerts).findings

    assert finding.what == what
    assert finding.sentence.startswith(sentence)


def test_alert_about_a_rank_has_its_place() -> None:
    """A job may be healthy on a GPU that is about to fail; of a late rank it is a fact."""
    labels = {"gpu": "2", "gpu_uuid": "GPU-6", "nodename": "gpu-2"} | WHO
    (gpu,) = diagnosed(*fake.job(), alert("RankskewGpuEccErrors", **labels)).findings
    (late,) = diagnosed(*straggler(), alert("RankskewGpuThrottled", **WHO)).findings

    assert (gpu.what, gpu.rank, gpu.place.gpu) == ("gpu_memory", 6, "2")
    assert gpu.first == "`nvidia-smi -q -i GPU-6 -d ECC,ROW_REMAPPER` on gpu-2"
    assert (late.rank, late.facts) == (6, ("Rank 6 on n2: a GPU is throttled.",))


# ---- A job that became slower as a whole ---------------------------------------------------------


def changed(scope: str) -> list[Series]:
    """Return what the exporters of two nodes repeat of the judge."""
    figures = {"ratio": 2.5, "gpus": 0.8, "since_timestamp_seconds": NOW - 720.0}
    return [
        series(f"rankskew_job_change_{name}", value, instance=node, scope=scope, stage="data")
        for name, value in figures.items()
        for node in ("n2:9917", "n3:9917")
    ]


def why(instance: str, cause: str, sentence: str) -> Series:
    """Return what an exporter says of the change of all ranks."""
    known = {"cause": cause, "detail": "", "sentence": sentence}
    name = "rankskew_job_change_cause_info"
    return series(name, scope="all", stage="data", instance=instance, **known)


def test_change_that_the_judge_tells_is_the_finding() -> None:
    """With its stage and onset, and what began at about that time; its own alert says no more."""
    told = [
        *fake.job(),
        series("ALERTS_FOR_STATE", NOW - 700, alertname="RankskewJobSlower"),
        series("ALERTS_FOR_STATE", NOW - 900, alertname="RankskewNetworkErrors"),
        series("ALERTS_FOR_STATE", NOW - 3000, alertname="RankskewGpuThrottled"),
        series("job:rankskew_run_seconds:max", 7000.0),
        why("n2:9917", "network", "a port is slow"),
        why("n3:9917", "input", "reads take 8 ms"),
        why("n1:9917", "input", "reads take 9 ms"),
    ]
    (slower,) = diagnosed(*told, *changed("all")).findings
    (of_some,) = diagnosed(*told, *changed("set")).findings

    assert slower.sentence == (
        "Data of peer group all has taken 2.50 times as long as before for 12 min; steps take "
        "1.11 times as long: 0.80 GPUs lost."
    )
    assert (slower.what, slower.stage, slower.since_seconds) == ("slower", "data", 720.0)
    assert slower.facts == (
        "Cause on n1 and 1 more: reads take 9 ms.",
        "Cause on n2: a port is slow.",
        "At about that time: RankskewNetworkErrors began.",
    )
    assert of_some.sentence == (
        "Many ranks of the job became slower together: data has taken 2.50 times as long for "
        "12 min."
    )


# ---- A fleet -------------------------------------------------------------------------------------


def test_fleet_takes_two_queries_and_the_most_urgent_job_comes_first() -> None:
    """Hung, then by GPUs lost, then what cannot be judged, then healthy, then ended.

    However many jobs there are, nothing is asked of the series of every rank.
    """
    states = ("no_probe", "healthy", "not_judgeable", "straggler", "hung", "ranks_missing")
    samples = [each for state in states for each in fake.job(state, state)]
    prometheus = recorded(*samples, *fake.job("costly", "rotating", gpus_lost=2.4))
    with prometheus.serve() as url:
        jobs = read_fleet(Prometheus(url)).jobs
    queries = [form["query"] for form in prometheus.asked]

    assert [job.job_id for job in jobs] == [
        *("hung", "costly", "ranks_missing", "straggler", "not_judgeable", "healthy", "no_probe")
    ]
    assert len(queries) == 2
    assert not any("rankskew_steps_total" in query for query in queries)


def test_rank_that_moved_is_shown_where_it_reports() -> None:
    """After a restart on another node the series of the dead process remain for a while."""
    (job,) = read(*fake.job(), *fake.rank(0, age=500.0), *fake.rank(0, "n9:9917")).jobs

    assert [rank.node for rank in job.ranks] == ["n9:9917"]


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
    """Several jobs, an empty time, a forbidding server; one that dies halfway is no healthy job."""
    prometheus = recorded(*straggler())

    def dying(sent: Sent) -> Answer:
        if len(prometheus.asked) > 6:
            return 500, "text/plain", b""
        return prometheus.answer(sent)

    with pytest.raises(CannotTell, match=r"There are 2 jobs; name one with --job: a, b\."):
        diagnosed(*fake.job("b"), *fake.job("a"))
    with pytest.raises(CannotTell, match=r"recorded nothing of any job at 1970-01-01 00:01:40"):
        diagnosed(at=100.0)
    with (
        serving(lambda sent: (403, "text/plain", b"no")) as url,
        pytest.raises(CannotTell, match=r"refuses us \(403"),
    ):
        read_prometheus(url, None, None, None)
    with serving(dying) as url, pytest.raises(Trouble, match="answers 500"):
        read_prometheus(url, None, None, None)


# ---- The queries, answered by Prometheus' own engine on what the rules make of simulated jobs ----

SCRAPE_SECONDS: Final = 15.0
SCRAPES: Final = 17
END: Final = (SCRAPES - 1) * SCRAPE_SECONDS
LATE_JOB, STUCK_JOB = "sim-0", "sim-1"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, JobStatus]:
    """Two jobs, each with its ranks, as a Prometheus with the rules would answer.

    promtool answers all that is asked at a time; what is asked next depends on it.
    """
    folder = tmp_path_factory.mktemp("promtool")
    scraped = scrapes(folder / "fleet", "loader:node=1,gpu=2", "hang:node=3,gpu=1")
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


def scrapes(folder: Any, *faults: str) -> list[dict[str, str]]:
    """Return what two jobs on two simulated nodes each expose in four minutes, for promtool."""
    clock = Clock(0.0)  # promtool's time begins there too.
    folder.mkdir()
    fleet = Fleet(equal_jobs(4, 4, 2, [parse(fault) for fault in faults]), folder, clock)
    values: dict[str, list[str]] = {}
    for scrape in range(SCRAPES):
        for node in fleet.nodes:
            page = ask(fleet_app(fleet, "a fleet"), "GET", f"/node/{node}/metrics", host="sim")
            assert page is not None
            where = {"instance": f"{node}:9917", "job": "rankskew", "cluster": "simulated"}
            for family in text_string_to_metric_families(page.text):
                for sample in family.samples:
                    name = f"{sample.name}{{{selector(**sample.labels, **where)}}}"
                    values.setdefault(name, ["_"] * SCRAPES)[scrape] = str(sample.value)
        clock.seconds += SCRAPE_SECONDS
    return [{"series": name, "values": " ".join(each)} for name, each in values.items()]


def test_late_rank_is_found_by_the_queries(simulated: Mapping[str, JobStatus]) -> None:
    """Rank, stage, cause, cost and what the ranks do are those that were simulated."""
    job = simulated[LATE_JOB]

    assert (job.state, job.culprit) == ("straggler", (6, "data"))
    assert job.cause == "loader (workers at their limit)"
    assert (job.world_size, job.ranks_seen) == (8, 8)
    assert job.gpus_lost == pytest.approx(2, abs=0.3)
    assert job.cost_per_hour is None  # Nobody has set a price.
    assert job.sentence.startswith("Rank 6 is slow loading data; 1.6")
    assert [rank.rank for rank in job.ranks] == [6, 0, 1, 2, 3, 4, 5, 7]
    late, peer = job.ranks[:2]
    assert (late.node, late.gpu, late.local_rank) == ("sim-01:9917", "2", "2")
    assert late.pid is not None
    assert (late.own_seconds or 0.0) > (peer.own_seconds or 0.0) + 0.1
    assert (late.wait_seconds or 0.0) < (peer.wait_seconds or 0.0)


def test_stuck_rank_is_found_by_the_queries(simulated: Mapping[str, JobStatus]) -> None:
    """While a job hangs there are no rates, but its ranks are shown with what they are in."""
    job = simulated[STUCK_JOB]

    assert (job.state, job.culprit, job.gpus_lost) == ("hung", (5, "data"), 8.0)
    assert "rank 5 on sim-03:9917 is stuck in data" in job.sentence
    assert [rank.rank for rank in job.ranks] == [5, 0, 1, 2, 3, 4, 6, 7]
    assert [rank.stage for rank in job.ranks[:2]] == ["data", "sync"]
    assert job.ranks[0].stage_seconds is None
