"""A comparison from a real Prometheus, over a history written from recorded runs."""

from collections.abc import Iterator, Mapping
from math import ceil
from pathlib import Path
from statistics import mean, median

import pytest

from devstack.parts import PrometheusProcess
from rankskew.accounting.step import busy_seconds
from rankskew.client.prometheus import Prometheus, selector
from rankskew.compare.choose import compare_recorded
from rankskew.compare.comparison import CANNOT_TELL, IMPROVED, Comparison
from rankskew.replay.judge import judge
from rankskew.replay.traces import Run, TraceTimeline, instance, read_traces, stretches, timeline
from tests.e2e.backfilled import KEPT, write_blocks
from tests.exporter.recorded import record

pytestmark = pytest.mark.e2e

SCRAPE_SECONDS = 15.0
# When the runs began; all of them are over an hour later.
BEGAN = 1_700_000_000.0
# A series that ends has a value for so long, since a history written like this has no stale marks.
LINGERS_SECONDS = 300
# Rank 3 is late for so many steps of 1.25 s.
LATE_STEPS = 600


def recorded(path: Path, job_id: str, steps: int = 1500, hang: int = -1) -> Run:
    """Return a run of which rank 3 is late until LATE_STEPS, and rank 2 hangs in step *hang*."""
    run = read_traces(
        [
            record(
                path / f"{job_id}.csv",
                ranks=4,
                steps=steps,
                late=lambda rank, step: (
                    100.0
                    if (rank, step) == (2, hang)
                    else 0.2
                    if rank == 3 and step < LATE_STEPS
                    else 0.0
                ),
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
def prometheus(changed: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scraped `changed`, a job that hung, and one that was restarted."""
    directory = tmp_path_factory.mktemp("prometheus")
    hung = recorded(directory, "hung", hang=300)
    first = recorded(directory, "restarted", steps=400)
    second = recorded(directory, "restarted", steps=900)
    write_blocks(
        directory / "data",
        [
            *samples(changed, BEGAN),
            *samples(hung, BEGAN),
            *samples(first, BEGAN),
            *samples(second, BEGAN + 600),
        ],
    )
    with PrometheusProcess(directory, keeps=KEPT) as process:
        yield Prometheus(process.url)


def ask(prometheus: Prometheus, job_id: str, begin: float, end: float) -> Comparison:
    """Compare the ten minutes before *begin* with those after *end*, seconds of the run."""
    asked = f"{BEGAN + begin:.0f}..{BEGAN + end:.0f}"
    return compare_recorded(prometheus, asked, 600.0, BEGAN + 3600.0, job_id)


def steps_of(run: Run, begin: float, end: float) -> list[Mapping[int, Mapping[str, float]]]:
    """Return the steps that ended between *begin* and *end*."""
    ends = timeline(run, 1.0).ends[0]
    return [run.steps[step] for step, at in ends.items() if begin < at <= end]


def test_figures_are_those_of_the_steps(prometheus: Prometheus, changed: Run) -> None:
    """Counters at borders of blocks give what the recorded steps themselves give."""
    mended = timeline(changed, 1.0).ends[0][LATE_STEPS]
    begin, end = mended - 20, mended + LINGERS_SECONDS + 20
    found = ask(prometheus, "changed", begin, end)
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


def test_a_hang_is_refused(prometheus: Prometheus) -> None:
    """The sentence says for how long no step ended."""
    found = ask(prometheus, "hung", 650, 700)

    assert found.verdict == CANNOT_TELL
    assert found.why is not None
    assert "s without a step: the job stood still" in found.why


def test_a_restart_is_refused(prometheus: Prometheus) -> None:
    """Counters that begin again are a restart, also if they overtake what they were."""
    found = ask(prometheus, "restarted", 900, 910)

    assert found.verdict == CANNOT_TELL
    assert found.why is not None
    assert "has a restart in it, or ranks that come and go" in found.why


def test_a_period_that_was_not_recorded_is_refused(prometheus: Prometheus) -> None:
    """Before its first scrape a job has no steps to compare."""
    found = ask(prometheus, "changed", 300, 1000)

    assert found.verdict == CANNOT_TELL
    assert found.why is not None
    assert "is not wholly recorded" in found.why
