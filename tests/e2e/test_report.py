"""Two weeks in a real Prometheus, written by the test, so that every figure is known beforehand."""

import json
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from rankskew.__main__ import main
from tests.e2e.backfilled import Past, remembering

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

DAY: Final = 86_400.0
HOUR: Final = 3_600.0
MINUTE: Final = 60.0
# Long ago, so that what the rules record now is not part of it.
END: Final = 1_700_006_400.0  # 2023-11-15, midnight.
BEGIN: Final = END - 14 * DAY
JOB: Final = {"cluster": "eu", "job_id": "llama"}
RANK: Final = {"rank": "3", "instance": "n1:9917", "peer_group": "all"}
SUSPECT: Final = {"rank": "5", "instance": "n2:9917", "peer_group": "all"}
NODE: Final = {"instance": "n4:9917", "stage": "backward", "cause": "slow_device"}
# The job runs from the second day on, for ten hours with a break before the seventh.
FIRST: Final = BEGIN + DAY
BREAK: Final = (FIRST + 6 * HOUR - 5 * MINUTE, FIRST + 6 * HOUR)
LAST: Final = FIRST + 10 * HOUR
ALIVE: Final = ((FIRST, BREAK[0]), (BREAK[1], LAST))
LATE: Final = (FIRST + HOUR, FIRST + 2 * HOUR)
HUNG: Final = (FIRST + 3 * HOUR, FIRST + 4 * HOUR)


def at(day: float, hours: float = 0.0) -> float:
    return BEGIN + day * DAY + hours * HOUR


def fleet(past: Past) -> None:
    """The rules are evaluated, except for the first half of the tenth day and the last day."""
    everything = [(BEGIN, END - DAY)]
    past.add("up", everything)
    past.add("rankskew_exporter_build_info", everything)
    ruled = [(BEGIN, at(9)), (at(9, 12), END - DAY)]
    # Of GPUs without a job.
    past.add("job:rankskew_job:group", ruled, cluster="eu", job_id="")


def alerts(past: Past) -> None:
    """Five incidents besides those of the job's first day."""
    other = {**JOB, "job_id": "other"}
    # A rank whose severity, stage and cause change, with a break of five minutes: one incident.
    rank = {**RANK, "job_id": "other"}
    firing = {"severity": "warning", "stage": "data", "cause": "input"}
    past.fires("Straggler", spans=[(at(4), at(4, 0.5))], **{**rank, **firing})
    worse = {"severity": "critical", "stage": "forward", "cause": "cpu"}
    spans = [(at(4, 0.5) + 5 * MINUTE, at(4, 2))]
    past.fires("Straggler", spans=spans, **{**rank, **worse})
    past.add("rank:rankskew_gpus_lost:sum", [(at(4), at(4, 2))], 1.5, **rank | other)
    # The same rank an hour later: another incident.
    past.fires("Straggler", spans=[(at(4, 3), at(4, 4))], **{**rank, **worse})
    past.add("rank:rankskew_gpus_lost:sum", [(at(4, 3), at(4, 4))], 0.5, **rank | other)
    # A slow node, and a rank of it, which it explains.
    node = {**NODE, "job_id": "other"}
    past.fires("SlowNode", "warning", [(at(6), at(6, 4))], **node)
    past.fires("RankSlower", "info", [(at(6), at(6, 4))], rank="7", kind="mild", **node)
    lost = {name: node[name] for name in ("job_id", "instance")}
    past.add("node:rankskew_gpus_lost:sum", [(at(6), at(6, 4))], 2.0, cluster="eu", **lost)
    # It has no cost of its own, and had begun before the period, from whose begin on it counts.
    past.fires("ExporterDown", "warning", [(at(-2), at(0, 1))], job_id="", instance="n9:9917")
    past.add("job:rankskew_gpu_hour_price:value", [(at(4), at(7))], 4.0, **other)
    past.add("job:rankskew_world_size:max", [(at(4), at(7))], 16, **other)
    past.add("job:rankskew_ranks_beating:sum", [(at(4), at(7))], 16, **other)


def job(past: Past) -> None:
    """A job of eight ranks: three GPUs wait for rank 3 for an hour, then it hangs for an hour."""
    past.add("job:rankskew_ranks_beating:sum", ALIVE, 8, **JOB)
    past.add("job:rankskew_world_size:max", ALIVE, 8, **JOB)
    past.add("job:rankskew_gpu_hour_price:value", ALIVE, 2.5, **JOB)
    for span in ALIVE:
        past.counter("job:rankskew_run_seconds:max", span, 1.0, **JOB)
    late = {**JOB, **RANK}
    past.add("rank_stage:rankskew_gpus_lost:sum", [LATE], 3, stage="data", **late)
    past.add("rank:rankskew_gpus_lost:sum", [LATE], 3, **late)
    half = LATE[0] + HOUR / 2
    past.add("rankskew_late_cause_info", [(LATE[0], half)], 1, cause="input", **late)
    past.add("rankskew_late_cause_info", [(half, LATE[1])], 1, cause="cpu", **late)
    suspect = {**JOB, **SUSPECT, "stage": "data"}
    past.add("rank_stage:rankskew_hang_suspect:group", [HUNG], 1, **suspect)
    # Communication costs a fifth of a GPU whenever the job is judged.
    judged = [(FIRST, HUNG[0]), (HUNG[1], BREAK[0]), ALIVE[1]]
    past.add("job_kind:rankskew_gpus_lost:sum", judged, 0.2, kind="common", **JOB)
    past.add("job_kind:rankskew_gpus_lost:sum", [LATE], 3, kind="persistent", **JOB)
    past.add("job_kind:rankskew_gpus_lost:sum", [HUNG], 8, kind="hung", **JOB)
    past.add("job:rankskew_gpus_lost:sum", [(FIRST, LATE[0])], 0.2, **JOB)
    past.add("job:rankskew_gpus_lost:sum", [LATE], 3.2, **JOB)
    past.add("job:rankskew_gpus_lost:sum", [(LATE[1], HUNG[0])], 0.2, **JOB)
    past.add("job:rankskew_gpus_lost:sum", [HUNG], 8, **JOB)
    past.add("job:rankskew_gpus_lost:sum", [(HUNG[1], BREAK[0]), ALIVE[1]], 0.2, **JOB)
    past.add("job:rankskew_state:info", [HUNG], 1, state="hung", **JOB)
    past.add("job:rankskew_state:info", [LATE], 1, state="straggler", **JOB)
    healthy = [(FIRST, LATE[0]), (LATE[1], HUNG[0]), (HUNG[1], BREAK[0]), ALIVE[1]]
    past.add("job:rankskew_state:info", healthy, 1, state="healthy", **JOB)
    # Its exporters show it for a while after its end.
    past.add("job:rankskew_state:info", [(LAST, LAST + HOUR)], 1, state="finished", **JOB)
    past.fires("Straggler", "critical", [LATE], stage="data", cause="input", **RANK)
    past.fires("JobHung", "critical", [HUNG], stage="data", **SUSPECT)
    past.fires("RanksMissing", "warning", [HUNG], state="unseen")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    past = Past()
    for write in (fleet, alerts, job):
        write(past)
    with remembering(past, tmp_path_factory.mktemp("prometheus")) as found:
        yield found


@pytest.fixture
def command(url: str) -> list[str]:
    """What each command is told."""
    return ["--prometheus", url]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return the document that a command prints."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_incidents_and_costs_are_exact(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What was written comes out as it was: incidents, GPU-hours, money."""
    said = told(capsys, "report", "--incidents", *command, "--at", str(END))
    assert said["watched_seconds"] == 12.5 * DAY
    rows = [
        (
            each["alert"].removeprefix("Rankskew"),
            each["seconds"] / HOUR,
            each["gpu_hours"],
            each["dollars"],
        )
        for each in said["incidents"]
    ]

    assert sorted(rows, key=str) == [
        ("ExporterDown", 1.0, None, None),
        ("JobHung", 1.0, pytest.approx(8.0), pytest.approx(20.0)),
        ("RankSlower", 4.0, None, None),
        ("RanksMissing", 1.0, None, None),
        ("SlowNode", 4.0, pytest.approx(8.0), pytest.approx(32.0)),
        ("Straggler", 1.0, pytest.approx(0.5), pytest.approx(2.0)),
        ("Straggler", 1.0, pytest.approx(3.0), pytest.approx(7.5)),
        # The five minutes in which it did not fire are not part of the cost.
        ("Straggler", 2.0, pytest.approx(1.5 * 115 / 60), pytest.approx(6 * 115 / 60)),
    ]


def test_parts_of_a_job_add_up(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """By rank, stage and cause, as the rules said; a hang is charged to its suspect."""
    said = told(capsys, "report", "--job", "llama", *command, "--at", str(END))
    parts = {
        (each["kind"], each["rank"], each["stage"], each["cause"]): each["gpu_hours"]
        for each in said["losses"]
    }
    common = 0.2 * (9 - 5 / 60)

    assert parts == {
        ("hung", "5", "data", None): pytest.approx(8.0),
        ("persistent", "3", "data", "input"): pytest.approx(1.5),
        ("persistent", "3", "data", "cpu"): pytest.approx(1.5),
        ("common", None, None, None): pytest.approx(common),
    }
    assert said["gpu_hours_lost"] == pytest.approx(sum(parts.values()))
    assert said["gpu_hours"] == pytest.approx(8 * (10 - 5 / 60))
    assert said["efficiency"] == pytest.approx(1 - sum(parts.values()) / said["gpu_hours"])
    assert said["dollars_lost"] == pytest.approx(2.5 * sum(parts.values()))
    assert said["restarts"] == [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(BREAK[1]))]
    assert said["state_seconds"] == {
        "hung": HOUR,
        "straggler": HOUR,
        "healthy": pytest.approx(8 * HOUR - 5 * MINUTE),
    }
    alerts = {each["alert"].removeprefix("Rankskew") for each in said["incidents"]}
    assert alerts == {"Straggler", "JobHung", "RanksMissing"}
