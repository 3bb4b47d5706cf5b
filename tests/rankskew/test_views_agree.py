"""The page of an exporter, `top` and `diagnose` say the same of every job at one moment."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import pytest

from exporter.causes.model import Cause
from rankskew.__main__ import main
from tests.exporter.live_node import EVEN, STAGES, Node, served
from tests.exporter.snapshots import late, verdict
from tests.rankskew.servers import exporter_of

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
STAND_STILL_SECONDS: Final = 310


class Said(NamedTuple):
    """What a view says of a job: the rank and stage to look at, why, and how much is lost."""

    state: str
    sentence: str
    rank: int | None
    stage: str | None
    cause: str | None
    gpus_lost: float | None
    coverage: float | None


@pytest.fixture(scope="module")
def exporter() -> Iterator[tuple[str, dict[str, Any]]]:
    """An exporter by its URL, and the document that its page draws, with a job in each state."""
    jobs = {name: Node(job_id=name) for name in JUDGED}
    page = jobs["data"]
    page.cause = CAUSE
    for name, job in jobs.items():
        job.store, job.said = page.store, JUDGED[name]
    jobs["partly"].change(join_coverage=0.9)
    for second in range(30 + STAND_STILL_SECONDS):
        for name, job in jobs.items():
            has_trouble = second >= 30 and name in ("hung", "shrunk")
            if has_trouble and name == "hung":
                job.change(STUCK, stage="backward")
            else:
                job.step(STAGES | {"sync": 0.1})
            job.pass_second(silent=(SILENT,) if has_trouble and name == "shrunk" else ())
    document = served(page.view)
    with exporter_of(document) as url:
        yield url, document


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


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main([*arguments, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


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


@pytest.mark.parametrize(
    ("job_id", "state", "who", "cause", "gpus_lost", "coverage"),
    [
        ("data", "straggler", (2, "data"), CAUSE.sentence, 1.75, None),
        ("backward", "straggler", (1, "backward"), None, 1.75, None),
        ("healthy", "healthy", (None, None), None, 0.5, None),
        ("hung", "hung", (STUCK, "backward"), None, 4.0, None),
        ("shrunk", "ranks_missing", (SILENT, None), None, 0.5, None),
        ("partly", "healthy", (None, None), None, 0.25, 0.9),
        ("starting", "starting", (None, None), None, None, None),
    ],
)
def test_views_agree(
    exporter: tuple[str, dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    job_id: str,
    state: str,
    who: tuple[int | None, str | None],
    cause: str | None,
    gpus_lost: float | None,
    coverage: float | None,
) -> None:
    """State, sentence, rank, stage, cause, GPUs lost and what is judged are exactly equal."""
    url, document = exporter
    page = of_page(document, job_id)
    top = of_top(printed(capsys, "top", "--exporter", url, "--job", job_id))
    report = printed(capsys, "diagnose", "--exporter", url, "--job", job_id)

    assert page == Said(state, page.sentence, *who, cause, gpus_lost, coverage)
    assert top == page
    assert of_diagnose(report, page.coverage) == page
