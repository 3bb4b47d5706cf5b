"""The page, `top`, `diagnose`, the rules and the alert say the same of every job at one moment."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import pytest

from exporter.causes.model import Cause
from exporter.collectors.base import Collector
from exporter.collectors.rank.jobs import JobsCollector
from exporter.collectors.rank.late_causes import LateCausesCollector
from exporter.collectors.rank.late_ranks import LateRanksCollector
from exporter.collectors.rank.ranks import RanksCollector
from exporter.evidence.late_causes import LateCauses, RankPlace
from exporter.ranks.node_jobs import NodeJobs
from tests.alerts.promtool import Answers, ScrapedPages, answers
from tests.exporter.live_node import EVEN, STAGES, Node, served
from tests.exporter.snapshots import late, verdict
from tests.rankskew.servers import exporter_of
from tests.rankskew.views import printed

CAUSE: Final = Cause("input", "reads", 0.83, "it reads 240 MB/s, its peers 2", "`iotop -p PID`")
BACKWARD: Final = late(rank=1, stage="backward", gpus={"backward": 0.75})
# What the judge says of each job; nothing of the last one.
JUDGED: Final[Mapping[str, dict[str, Any] | None]] = {
    "data": verdict(),
    "backward": verdict(late=(BACKWARD,)),
    "healthy": EVEN,
    "hung": EVEN,
    "shrunk": EVEN,
    "partly": verdict(late=(), gpus_lost={"common": 0.25}, slowdown=1.0),
    "starting": None,
}
STUCK, SILENT = 1, 3
SCRAPE_SECONDS: Final = 15
TROUBLE_SECONDS: Final = 30
LASTS_SECONDS: Final = 360
# What the rules say of jobs, and whom they page.
STATE: Final = "job:rankskew_state:info"
LATE: Final = "rank:rankskew_late:ratio"
SUSPECT: Final = "rank_stage:rankskew_hang_suspect:group"
SILENT_RANK: Final = "rank:rankskew_silent_seconds:max"
WHY: Final = "rankskew_late_cause_info"
LOST: Final = "job:rankskew_gpus_lost:sum"
COVERAGE: Final = "job:rankskew_coverage:ratio"
ALERTS: Final = 'ALERTS{alertstate="firing",severity!="info"}'
ASKED: Final = (STATE, LATE, SUSPECT, SILENT_RANK, WHY, LOST, COVERAGE, ALERTS)


class Said(NamedTuple):
    """What a view says of a job: the rank and stage to look at, why, and how much is lost."""

    state: str
    sentence: str
    rank: int | None
    stage: str | None
    cause: str | None
    gpus_lost: float | None
    coverage: float | None


class Moment(NamedTuple):
    """An exporter by its URL, the document that its page draws, and what the rules make of it."""

    url: str
    document: dict[str, Any]
    rules: Answers


@pytest.fixture(scope="module")
def moment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moment]:
    """A job in each state, asked for at one moment."""
    jobs = {name: Node(job_id=name) for name in JUDGED}
    page = jobs["data"]
    page.cause = CAUSE
    for name, job in jobs.items():
        job.store, job.said = page.store, JUDGED[name]
    jobs["partly"].change(join_coverage=0.9)
    causes, known = LateCauses(), NodeJobs(page.store)
    causes.take(("data", 2), CAUSE, RankPlace("all", "gpu-12", "2", pid="102"), page.now, 60.0)
    scraped = ScrapedPages()
    collectors: tuple[Collector, ...] = (
        RanksCollector(page.store),
        JobsCollector(known),
        LateRanksCollector(known, clock=lambda: page.now),
        LateCausesCollector(causes),
    )
    for second in range(LASTS_SECONDS + 1):
        for name, job in jobs.items():
            has_trouble = second >= TROUBLE_SECONDS and name in ("hung", "shrunk")
            if has_trouble and name == "hung":
                job.change(STUCK, stage="backward")
            else:
                job.step(STAGES | {"sync": 0.1})
            job.pass_second(silent=(SILENT,) if has_trouble and name == "shrunk" else ())
        scrape, since = divmod(second, SCRAPE_SECONDS)
        if since == 0:
            metrics = (metric for each in collectors for metric in each.collect())
            scraped.scrape(scrape, "gpu-12:9917", metrics)
    document = served(page.view)
    asked = [(expr, float(LASTS_SECONDS)) for expr in ASKED]
    rules = answers(tmp_path_factory.mktemp("rules"), scraped.series(), asked)
    with exporter_of(document) as url:
        yield Moment(url, document, rules)


def of_page(document: dict[str, Any], job_id: str) -> Said:
    (job,) = (each for each in document["jobs"] if each["job_id"] == job_id)
    said = job["verdict"]
    rank = stage = cause = None
    if said["late"]:
        first = said["late"][0]
        rank, stage, cause = first["rank"], first["stage"], (first["cause"] or {}).get("sentence")
    elif silent := [each["rank"] for each in job["ranks"] if each["silent"]]:
        rank = silent[0]
    elif said["state"] == "hung":
        (stuck,) = (each for each in job["ranks"] if each["stage"] != "sync")
        rank, stage = stuck["rank"], stuck["stage"]
    lost = sum(said["gpus_lost"].values()) if said["gpus_lost"] else None
    return Said(said["state"], said["sentence"], rank, stage, cause, lost, said["coverage"])


def of_top(found: dict[str, Any]) -> Said:
    (job,) = found["jobs"]
    rank, stage, cause = None, None, None
    if job["culprit"] is not None:
        rank, stage = job["culprit"]["rank"], job["culprit"]["stage"]
    elif job["ranks"][0]["silent"]:
        rank = job["ranks"][0]["rank"]
    if job["late"] and job["late"][0]["cause"] is not None:
        cause = job["late"][0]["cause"]["sentence"]
    figures = job["gpus_lost"], job["coverage"]
    return Said(job["state"], job["sentence"], rank, stage, cause, *figures)


def of_diagnose(found: dict[str, Any], coverage: float | None) -> Said:
    """The coverage is told in words, and only if something is not judged."""
    nothing: dict[str, Any] = {"rank": None, "stage": None, "cause": None}
    first = next(iter(found["findings"]), nothing)
    why = first["cause"] or {"cause": "unknown"}
    cause = None if why["cause"] == "unknown" else why["sentence"]
    lost = None if found["loss"] is None else found["loss"]["gpus"]
    partly = f"Only {coverage or 0.0:.0%} of the job's ranks and steps are judged."
    told = coverage if (partly in found["unjudged"]) == (coverage not in (None, 1.0)) else None
    who = first["rank"], first["stage"]
    return Said(found["state"], found["sentence"], *who, cause, lost, told)


def of_rules(found: Answers, job_id: str, page: Said) -> Said:
    """Return what the rules say; they write no sentence, and count ranks that are not scraped."""
    mine = {
        expr: [(labels, value) for labels, value in samples if labels["job_id"] == job_id]
        for (expr, _), samples in found.items()
    }
    ((state, _),) = mine[STATE]
    who, _ = next(iter(mine[LATE] + mine[SUSPECT] + mine[SILENT_RANK]), ({}, 0.0))
    cause = mine[WHY][0][0]["sentence"] if mine[WHY] else None
    lost = mine[LOST][0][1] if mine[LOST] else None
    rank = int(who["rank"]) if who else None
    return page._replace(
        state=state["state"], rank=rank, stage=who.get("stage"), cause=cause, gpus_lost=lost
    )


@pytest.mark.parametrize(
    ("job_id", "state", "who", "cause", "gpus_lost", "coverage", "paged"),
    [
        ("data", "straggler", (2, "data"), CAUSE.sentence, 1.75, None, "Straggler"),
        ("backward", "straggler", (1, "backward"), None, 1.75, None, "Straggler"),
        ("healthy", "healthy", (None, None), None, 0.5, None, None),
        ("hung", "hung", (STUCK, "backward"), None, 4.0, None, "JobHung"),
        ("shrunk", "ranks_missing", (SILENT, None), None, 0.5, None, "RanksMissing"),
        ("partly", "healthy", (None, None), None, 0.25, 0.9, None),
        ("starting", "starting", (None, None), None, None, None, None),
    ],
)
def test_views_agree(
    moment: Moment,
    capsys: pytest.CaptureFixture[str],
    job_id: str,
    state: str,
    who: tuple[int | None, str | None],
    cause: str | None,
    gpus_lost: float | None,
    coverage: float | None,
    paged: str | None,
) -> None:
    """State, sentence, rank, stage, cause, GPUs lost and what is judged are exactly equal."""
    url, document, rules = moment
    page = of_page(document, job_id)
    top = of_top(printed(capsys, "top", "--exporter", url, "--job", job_id))
    report = printed(capsys, "diagnose", "--exporter", url, "--job", job_id)
    alerts = [
        (labels["alertname"], labels["rank"], labels.get("stage"))
        for labels, _ in rules[ALERTS, LASTS_SECONDS]
        if labels["job_id"] == job_id
    ]

    assert page == Said(state, page.sentence, *who, cause, gpus_lost, coverage)
    assert top == page
    assert of_diagnose(report, page.coverage) == page
    assert of_rules(rules, job_id, page) == page
    rank, stage = who
    # A hang has no stage as label: a frozen rank that returns would page again.
    label = stage if state == "straggler" else None
    assert alerts == ([(f"Rankskew{paged}", f"{rank}", label)] if paged else [])
