"""`report` and `compare` on a real Prometheus, whose past was written: each figure is known before.

Two weeks of a fleet are as the rules would have recorded them; the runs of a job of which a late
rank was mended are as their exporters would have exposed them.
"""

import json
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

import pytest
import yaml

from devstack.parts import RULES
from devstack.process import StackProcess, free_port
from rankskew.__main__ import main
from rankskew.accounting.step import busy_seconds
from rankskew.client.prometheus import Prometheus, selector
from rankskew.compare.choose import compare_recorded
from rankskew.compare.comparison import CANNOT_TELL, IMPROVED, Comparison
from rankskew.replay.judge import judge
from rankskew.replay.traces import Run, TraceTimeline, instance, read_traces, stretches, timeline
from tests.exporter.recorded import record

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

INTERVAL_SECONDS: Final = 60.0
# What was written is as old as the tests say, whatever the day.
KEPT: Final = "100y"
# A series that ends has a value for so long, since a history written like this has no stale marks.
LINGERS_SECONDS: Final = INTERVAL_SECONDS - 10
SCRAPE_SECONDS: Final = 15.0
# When the runs began; all of them are over an hour later.
BEGAN: Final = 1_700_000_000.0
# Rank 3 is late for so many steps of 1.25 s.
LATE_STEPS: Final = 600

Span = tuple[float, float]


@dataclass
class Past:
    """Series by name, each with its labels and values at multiples of INTERVAL_SECONDS."""

    series: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, spans: Iterable[Span], value: float = 1.0, **labels: str) -> None:
        """Add a series that has *value* during *spans*, which end before their end."""
        inside = ",".join(f'{label}="{text}"' for label, text in labels.items())
        lines = self.series.setdefault(name, [])
        for begin, end in spans:
            points = round((end - begin) / INTERVAL_SECONDS)
            lines += [
                f"{name}{{{inside}}} {value} {begin + n * INTERVAL_SECONDS:.0f}"
                for n in range(points)
            ]

    def counter(self, name: str, span: Span, per_second: float, **labels: str) -> None:
        """Add a counter that begins at 0 and grows all the time during *span*."""
        inside = ",".join(f'{label}="{text}"' for label, text in labels.items())
        points = round((span[1] - span[0]) / INTERVAL_SECONDS)
        self.series.setdefault(name, []).extend(
            f"{name}{{{inside}}} {n * INTERVAL_SECONDS * per_second} "
            f"{span[0] + n * INTERVAL_SECONDS:.0f}"
            for n in range(points)
        )

    def fires(self, alert: str, severity: str, spans: Sequence[Span], **labels: str) -> None:
        """Add an alert of `llama` in `eu` that fires during *spans*."""
        named = {"alertname": f"Rankskew{alert}", "alertstate": "firing", "severity": severity}
        self.add("ALERTS", spans, 1.0, **(named | {"cluster": "eu", "job_id": "llama"} | labels))

    def lines(self) -> list[str]:
        """Return all of it as lines of OpenMetrics."""
        return [line for lines in self.series.values() for line in lines]


def write_blocks(directory: Path, lines: Iterable[str]) -> None:
    """Write *lines* of OpenMetrics as blocks into the *directory* of a Prometheus."""
    text = directory.with_suffix(".txt")
    text.write_text("\n".join([*lines, "# EOF\n"]))
    command = ["promtool", "tsdb", "create-blocks-from", "--max-block-duration=240h"]
    command += ["openmetrics", str(text), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class OldPrometheus(StackProcess):
    """A Prometheus on what is in *data*, with the shipped rules, that scrapes nothing.

    What was written has no end markers, so a series ends with its last value at once.
    """

    def __init__(self, directory: Path, data: Path) -> None:
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        self.ready_url = f"{self.url}/-/ready"
        config = directory / "prometheus.yaml"
        interval = f"{INTERVAL_SECONDS:.0f}s"
        settings = {
            "global": {"evaluation_interval": interval},
            "rule_files": [str(RULES / "*.yaml")],
        }
        config.write_text(yaml.safe_dump(settings))
        command = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={data}",
            f"--storage.tsdb.retention.time={KEPT}",
            f"--web.listen-address={address}",
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


def recorded(path: Path, job_id: str, steps: int = 1500) -> Run:
    """Return a run of which rank 3 is late until LATE_STEPS."""
    run = read_traces(
        [
            record(
                path / f"{job_id}.csv",
                ranks=4,
                steps=steps,
                late=lambda rank, step: 0.2 if rank == 3 and step < LATE_STEPS else 0.0,
            )
        ]
    )[0]
    run.job_id = job_id
    return run


def samples(run: Run, began: float) -> Iterator[str]:
    """Yield what exporters exposed of *run*, as far as a comparison reads it, in OpenMetrics."""
    line = timeline(run, 1.0)
    (judged,) = judge(run, line, stretches(run, line))
    for number in range(ceil(line.seconds / SCRAPE_SECONDS) + 1):
        now = number * SCRAPE_SECONDS
        said = [verdict for at, verdict in judged.verdicts if at <= now]
        late = {one.rank: one for one in said[-1].late} if said else {}
        shown = [each for rank in run.times for each in counted(run, line, rank, now)]
        for rank, one in late.items():
            who = labels(run, rank, kind=one.kind, stage=one.stage)
            shown.append((f"rankskew_late_ratio{who}", one.ratio))
        ages = [now - max(ended) for rank in run.times if (ended := ends(line, rank, now))]
        if ages:
            shown.append((f"rankskew_node_last_step_age_seconds{labels(run)}", min(ages)))
        if said and said[-1].step_seconds is not None:
            shown.append((f"rankskew_job_step_seconds{labels(run)}", said[-1].step_seconds))
        if said and said[-1].slowdown is not None:
            shown.append((f"rankskew_job_slowdown_ratio{labels(run)}", said[-1].slowdown))
        yield from (f"{name} {value:.12g} {began + now:.3f}" for name, value in shown)


def counted(run: Run, line: TraceTimeline, rank: int, now: float) -> Iterator[tuple[str, float]]:
    """Yield the counters of *rank*, in which a step counts when it has ended."""
    steps = [run.steps[step][rank] for step, end in line.ends[rank].items() if end <= now]
    yield f"rankskew_steps_total{labels(run, rank)}", len(steps)
    if steps:
        yield f"rankskew_busy_seconds_total{labels(run, rank)}", sum(map(busy_seconds, steps))
        for stage in steps[0]:
            name = f"rankskew_stage_seconds_total{labels(run, rank, phase='any', stage=stage)}"
            yield name, sum(step[stage] for step in steps)


def ends(line: TraceTimeline, rank: int, now: float) -> list[float]:
    return [end for end in line.ends[rank].values() if end <= now]


def labels(run: Run, rank: int = 0, **more: str) -> str:
    """Return the labels of a series of *rank*."""
    where = {"instance": instance(run.nodes[rank]), "peer_group": run.peer_groups[rank]}
    return f"{{{selector(job_id=run.job_id, rank=str(rank), **where, **more)}}}"


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in which a late rank was mended."""
    return recorded(tmp_path_factory.mktemp("trace"), "changed")


@pytest.fixture(scope="module")
def url(changed: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that knows the two weeks, `changed`, and a job that was restarted."""
    directory = tmp_path_factory.mktemp("prometheus")
    past = Past()
    for write in (fleet, alerts, job):
        write(past)
    runs = [(changed, 0), (recorded(directory, "restarted", 400), 0)]
    runs.append((recorded(directory, "restarted", 900), 520))
    scraped = [line for run, later in runs for line in samples(run, BEGAN + later)]
    write_blocks(directory / "data", [*past.lines(), *scraped])
    with OldPrometheus(directory, directory / "data") as prometheus:
        yield prometheus.url


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return the document that a command prints."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_incidents_and_costs_are_exact(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What was written comes out as it was: incidents, GPU-hours, money."""
    said = told(capsys, "report", "--incidents", "--prometheus", url, "--at", str(END))
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


def ask(url: str, job_id: str, begin: float, end: float) -> Comparison:
    """Compare the ten minutes before *begin* with those after *end*, seconds of the run."""
    asked = f"{BEGAN + begin:.0f}..{BEGAN + end:.0f}"
    return compare_recorded(Prometheus(url), asked, 600.0, BEGAN + 3600.0, job_id)


def steps_of(run: Run, begin: float, end: float) -> list[Mapping[int, Mapping[str, float]]]:
    """Return the steps that ended between *begin* and *end*."""
    ends = timeline(run, 1.0).ends[0]
    return [run.steps[step] for step, at in ends.items() if begin < at <= end]


def test_figures_are_those_of_the_steps(url: str, changed: Run) -> None:
    """Counters at borders of blocks give what the recorded steps themselves give."""
    mended = timeline(changed, 1.0).ends[0][LATE_STEPS]
    begin, end = mended - 20, mended + LINGERS_SECONDS + 20
    found = ask(url, "changed", begin, end)
    known = {one.name: one for one in found.quantities}
    before = steps_of(changed, begin - 600, begin)
    after = steps_of(changed, end, end + 600)
    lengths = [mean(sum(step[0].values()) for step in side) for side in (before, after)]
    ratio = lengths[1] / lengths[0]

    assert found.verdict == IMPROVED
    assert found.cost is not None
    assert found.cost.ratio is not None
    assert found.cost.ratio.value == pytest.approx(ratio, rel=0.005)
    assert found.cost.ratio.high - found.cost.ratio.low < 0.02
    for stage in ("data", "forward", "backward", "sync"):
        medians = [
            mean(median(ranks[stage] for ranks in step.values()) for step in side)
            for side in (before, after)
        ]
        assert [known[stage].before, known[stage].after] == pytest.approx(medians, rel=0.02)
    waits = sum(ranks["sync"] for step in before for ranks in step.values())
    assert known["gpus_lost"].before == pytest.approx(waits / (len(before) * lengths[0]), rel=0.02)
    assert found.before is not None
    assert found.before.slowdown == pytest.approx(1 / ratio, rel=0.02)
    assert found.late is not None
    assert [(one.rank, one.stage, one.late) for one in found.late] == [(3, "backward", "before")]


def test_a_restart_is_refused(url: str) -> None:
    """Counters that begin again are a restart, also if they overtake what they were."""
    found = ask(url, "restarted", 900, 910)

    assert found.verdict == CANNOT_TELL
    assert found.why is not None
    assert "has a restart in it, or ranks that come and go" in found.why
