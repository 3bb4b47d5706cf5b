"""`report` and `compare` on a real Prometheus with a backfilled history whose figures are known.

The history holds two weeks of a fleet as the rules would have recorded them, and a run in which a
late rank was fixed, as its exporters would have exposed it.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from devstack.parts import RULES, Server
from rankskew.__main__ import main
from rankskew.client.prometheus import Prometheus, selector
from rankskew.compare.choose import compare_recorded
from rankskew.compare.comparison import IMPROVED

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

INTERVAL_SECONDS: Final = 60.0
SCRAPE_SECONDS: Final = 15.0
# How long a series has a value after its end: a backfilled history has no staleness markers.
LINGERS_SECONDS: Final = INTERVAL_SECONDS - 10

Span = tuple[float, float]


@dataclass
class Past:
    """Series by name, each with its labels and values, as lines of OpenMetrics."""

    series: dict[str, list[str]] = field(default_factory=dict)

    def add(
        self,
        name: str,
        spans: Iterable[Span],
        value: float | Callable[[float], float] = 1.0,
        every: float = INTERVAL_SECONDS,
        /,
        **labels: str,
    ) -> None:
        """Add a series that has *value*, which may depend on the time, during *spans*."""
        of = value if callable(value) else lambda _: value
        lines = self.series.setdefault(name, [])
        for begin, end in spans:
            times = [begin + number * every for number in range(round((end - begin) / every))]
            lines += [f"{name}{{{selector(**labels)}}} {of(at):.12g} {at:.0f}" for at in times]

    def fires(self, alert: str, severity: str, spans: Iterable[Span], **labels: str) -> None:
        """Add an alert of `llama` in `eu` that fires during *spans*."""
        named = {"alertname": f"Rankskew{alert}", "alertstate": "firing", "severity": severity}
        self.add("ALERTS", spans, 1.0, **named | {"cluster": "eu", "job_id": "llama"} | labels)

    def write(self, folder: Path) -> None:
        """Write all of it as blocks into the *folder* of a Prometheus."""
        text = folder.with_suffix(".txt")
        lines = [line for lines in self.series.values() for line in lines]
        text.write_text("\n".join([*lines, "# EOF\n"]))
        command = ["promtool", "tsdb", "create-blocks-from", "--max-block-duration=240h"]
        command += ["openmetrics", str(text), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


class OldPrometheus(Server):
    """A Prometheus on the data in *directory*, with the shipped rules, that scrapes nothing."""

    def __init__(self, directory: Path) -> None:
        self.listen(directory)
        config = directory / "prometheus.yaml"
        interval = {"evaluation_interval": f"{INTERVAL_SECONDS:.0f}s"}
        settings = {"global": interval, "rule_files": [str(RULES / "*.yaml")]}
        config.write_text(yaml.safe_dump(settings))
        command = [
            *("prometheus", f"--config.file={config}", f"--web.listen-address={self.address}"),
            # What was written is as old as it says, whatever the day.
            *(f"--storage.tsdb.path={directory / 'data'}", "--storage.tsdb.retention.time=100y"),
            f"--query.lookback-delta={LINGERS_SECONDS:.0f}s",
        ]
        super().__init__("Prometheus", command, directory / "prometheus.log")


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


def since(begin: float) -> Callable[[float], float]:
    return lambda at: at - begin


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
    """Four incidents besides those of the job's first day."""
    other = {**JOB, "job_id": "other"}
    # A rank whose severity, stage and cause change, with a break of five minutes: one incident.
    rank = {**RANK, "job_id": "other"}
    firing = {"severity": "warning", "stage": "data", "cause": "input"}
    past.fires("Straggler", spans=[(at(4), at(4, 0.5))], **{**rank, **firing})
    worse = {"severity": "critical", "stage": "forward", "cause": "cpu"}
    spans = [(at(4, 0.5) + 5 * MINUTE, at(4, 2))]
    past.fires("Straggler", spans=spans, **{**rank, **worse})
    past.add("rank:rankskew_gpus_lost:sum", [(at(4), at(4, 2))], 1.5, **rank | other)
    # A slow node, and a rank of it, which it explains.
    node = {**NODE, "job_id": "other"}
    past.fires("SlowNode", "warning", [(at(6), at(6, 4))], **node)
    past.fires("RankSlower", "info", [(at(6), at(6, 4))], rank="7", kind="mild", **node)
    lost = {name: node[name] for name in ("job_id", "instance")}
    past.add("node:rankskew_gpus_lost:sum", [(at(6), at(6, 4))], 2.0, cluster="eu", **lost)
    # No cost of its own; it began before the report's period and counts from the period's start.
    past.fires("ExporterDown", "warning", [(at(-2), at(0, 1))], job_id="", instance="n9:9917")
    past.add("job:rankskew_gpu_hour_price:value", [(at(4), at(7))], 4.0, **other)
    past.add("job:rankskew_world_size:max", [(at(4), at(7))], 16, **other)
    past.add("job:rankskew_ranks_beating:sum", [(at(4), at(7))], 16, **other)


def job(past: Past) -> None:
    """A job of eight ranks: three GPUs wait for rank 3 for an hour, then it hangs for an hour."""
    past.add("job:rankskew_ranks_beating:sum", ALIVE, 8, **JOB)
    past.add("job:rankskew_world_size:max", ALIVE, 8, **JOB)
    past.add("job:rankskew_gpu_hour_price:value", ALIVE, 2.5, **JOB)
    for begin, end in ALIVE:
        past.add("job:rankskew_run_seconds:max", [(begin, end)], since(begin), **JOB)
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
    healthy = [(FIRST, LATE[0]), (LATE[1], HUNG[0]), (HUNG[1], BREAK[0]), ALIVE[1]]
    for state, spans in {"healthy": healthy, "straggler": [LATE], "hung": [HUNG]}.items():
        past.add("job:rankskew_state:info", spans, 1, state=state, **JOB)
    lost = {LATE: 3.2, HUNG: 8.0}
    for span in sorted([*healthy, LATE, HUNG]):
        past.add("job:rankskew_gpus_lost:sum", [span], lost.get(span, 0.2), **JOB)
    # Its exporters show it for a while after its end.
    past.add("job:rankskew_state:info", [(LAST, LAST + HOUR)], 1, state="finished", **JOB)
    past.fires("Straggler", "critical", [LATE], stage="data", cause="input", **RANK)
    past.fires("JobHung", "critical", [HUNG], stage="data", **SUSPECT)
    past.fires("RanksMissing", "warning", [HUNG], state="unseen")


# When the run began, in which rank 3 was late in backward for the first steps.
BEGAN: Final = 1_700_000_000.0
MENDED: Final = BEGAN + 720.0
RUN: Final = (BEGAN, MENDED + 900.0)
STAGES: Final = {"data": 0.1, "forward": 0.25, "backward": 0.5, "optimizer": 0.1}
LATE_SECONDS: Final = 0.2
# Each step is as long as that of the slowest rank, and what it takes all to communicate.
STEP_SECONDS: Final = 1.0
RANKS: Final = 4


def changed(past: Past) -> None:
    """A run of four ranks whose steps became shorter when rank 3 was mended."""
    lengths = (STEP_SECONDS + LATE_SECONDS, STEP_SECONDS)

    def count(name: str, before: float, after: float, /, **labels: str) -> None:
        """Add a counter that grows by *before* per step until MENDED, then by *after*."""
        rates = before / lengths[0], after / lengths[1]

        def so_far(at: float) -> float:
            return rates[0] * (min(at, MENDED) - BEGAN) + rates[1] * max(0.0, at - MENDED)

        past.add(name, [RUN], so_far, SCRAPE_SECONDS, **labels)

    for rank in range(RANKS):
        who = {"job_id": "changed", "rank": str(rank), "instance": f"n{rank}:9917"}
        own = [dict(STAGES), dict(STAGES)]
        own[0]["backward"] += LATE_SECONDS * (rank == 3)
        busy = [sum(stages.values()) for stages in own]
        count("rankskew_steps_total", 1, 1, **who)
        count("rankskew_busy_seconds_total", *busy, **who)
        for stage in STAGES:
            before, after = own[0][stage], own[1][stage]
            count("rankskew_stage_seconds_total", before, after, phase="any", stage=stage, **who)
        waits = [length - mine for length, mine in zip(lengths, busy, strict=True)]
        count("rankskew_stage_seconds_total", *waits, phase="any", stage="sync", **who)
    late = {"job_id": "changed", "rank": "3", "kind": "persistent", "stage": "backward"}
    past.add("rankskew_late_ratio", [(BEGAN, MENDED)], LATE_SECONDS, SCRAPE_SECONDS, **late)
    past.add("rankskew_job_step_seconds", [RUN], STEP_SECONDS, SCRAPE_SECONDS, job_id="changed")
    past.add("rankskew_node_last_step_age_seconds", [RUN], 1.0, SCRAPE_SECONDS, job_id="changed")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that knows the two weeks and the run, and scrapes nothing."""
    directory = tmp_path_factory.mktemp("prometheus")
    past = Past()
    for add in (fleet, alerts, job, changed):
        add(past)
    past.write(directory / "data")
    with OldPrometheus(directory) as prometheus:
        yield prometheus.url


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return the document that a command prints."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_incidents_and_costs_are_exact(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What was written comes out as it was: incidents, GPU-hours, money."""
    said = told(capsys, "report", "--incidents", "--prometheus", url, "--at", str(END))
    assert said["watched_seconds"] == 12.5 * DAY
    figures = ("gpu_hours", "dollars")
    rows = [
        (
            each["alert"][len("Rankskew") :],
            each["seconds"] / HOUR,
            *(each[name] for name in figures),
        )
        for each in said["incidents"]
    ]

    assert sorted(rows, key=str) == [
        ("ExporterDown", 1.0, None, None),
        ("JobHung", 1.0, pytest.approx(8.0), pytest.approx(20.0)),
        ("RankSlower", 4.0, None, None),
        ("RanksMissing", 1.0, None, None),
        ("SlowNode", 4.0, pytest.approx(8.0), pytest.approx(32.0)),
        ("Straggler", 1.0, pytest.approx(3.0), pytest.approx(7.5)),
        # The five minutes in which it did not fire are not part of the cost.
        ("Straggler", 2.0, pytest.approx(1.5 * 115 / 60), pytest.approx(6 * 115 / 60)),
    ]


def test_parts_of_a_job_add_up(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By rank, stage and cause, as the rules said; a hang is charged to its suspect."""
    said = told(capsys, "report", "--job", "llama", "--prometheus", url, "--at", str(END))
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


def test_figures_are_those_of_the_steps(url: str) -> None:
    """The figures that `compare` derives from counters at block borders are those of the steps."""
    begin, end = MENDED - 20, MENDED + LINGERS_SECONDS + 20
    asked = f"{begin:.0f}..{end:.0f}"
    found = compare_recorded(Prometheus(url), asked, 600.0, RUN[1], "changed")
    known = {one.name: (one.before, one.after) for one in found.quantities}
    waits = [LATE_SECONDS * (RANKS - 1), 0.0]
    common = STEP_SECONDS - sum(STAGES.values())
    lengths = [STEP_SECONDS + LATE_SECONDS, STEP_SECONDS]
    lost = [(wait + RANKS * common) / length for wait, length in zip(waits, lengths, strict=True)]

    assert found.verdict == IMPROVED
    assert found.cost is not None
    assert found.cost.ratio is not None
    assert found.cost.ratio.value == pytest.approx(lengths[1] / lengths[0], rel=0.005)
    assert found.cost.ratio.high - found.cost.ratio.low < 0.02
    for stage, seconds in STAGES.items():
        assert known[stage] == pytest.approx((seconds, seconds), rel=0.02)
    assert known["sync"] == pytest.approx((common + LATE_SECONDS, common), rel=0.02)
    assert known["gpus_lost"] == pytest.approx(tuple(lost), rel=0.02)
    assert found.late is not None
    assert [(one.rank, one.stage, one.late) for one in found.late] == [(3, "backward", "before")]
