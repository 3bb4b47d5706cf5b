"""Eight jobs at once: pages name each rank at fault, its stage, cost and cause, and no other.

Devices are emulated by sleeping, so that 32 ranks fit on two cores.
"""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest

from devstack.process import get, wait_for
from devstack.webhook import ReceivedAlert
from exporter.vocabulary.words import slow_at
from tests.e2e.conftest import HANGING, SHRUNK, Stack
from tests.rank_probe.forks import Fork, Zygote
from tests.rank_probe.launch import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

RANKS: Final = 4
TRAIN: Final = ROOT / "demo" / "train.py"
WITH_EVALUATOR: Final = Path(__file__).with_name("training_with_evaluator.py")
STEP_SECONDS, DELAY_SECONDS = 0.6, 0.3
ENDLESS: Final = ("--step-seconds", str(STEP_SECONDS), "--steps", "1000000")
SHORT: Final = ("--step-seconds", "0.1", "--steps", "1000000")
HEALTHY: Final = "healthy"
# By the job: how it trains, and where its rank 2 is late.
LATE: Final = {
    "late-in-data": ("plain", "data"),
    "late-in-backward": ("batchnorm", "backward"),
    "late-accumulating": ("accumulate", "forward"),
    "late-after-all": ("plain", "after_optimizer"),
}
STAGES: Final = {
    job_id: "other" if fault == "after_optimizer" else fault for job_id, (_, fault) in LATE.items()
}
EVALUATED: Final = "with-evaluator"
STRAGGLER, HUNG = "RankskewStraggler", "RankskewJobHung"
# Each delay is a sleep of the main thread: its line is seen in seconds, and is unknown until then.
CAUSES: Final = {"code", "unknown"}
PATIENCE_SECONDS: Final = 240.0


class Jobs:
    """Starts jobs whose ranks are forks of one process, and report to the *stack*."""

    def __init__(self, stack: Stack, zygote: Zygote, undo: ExitStack) -> None:
        self._stack, self._zygote, self._undo = stack, zygote, undo

    def start(
        self, job_id: str, script: Path, *arguments: str, ranks: int = RANKS
    ) -> Sequence[Fork]:
        """Start *script* under the probe in every rank of *job_id*."""
        environment = {
            "RANKSKEW_EXPORTER": self._stack.exporter.target,
            "RANKSKEW_JOB_ID": job_id,
            "LOCAL_WORLD_SIZE": str(ranks),
        }
        folder = self._stack.directory / job_id
        folder.mkdir(exist_ok=True)
        job = self._zygote.ranks(
            folder, "rank_probe", str(script), *arguments, ranks=ranks, **environment
        )
        return self._undo.enter_context(job)

    def end(self) -> None:
        """End them all."""
        self._undo.close()


@pytest.fixture(scope="module")
def jobs(stack: Stack, zygote: Zygote) -> Iterator[Jobs]:
    """What starts the jobs."""
    with ExitStack() as undo:
        yield Jobs(stack, zygote, undo)


@pytest.fixture(scope="module")
def training(jobs: Jobs) -> None:
    """Jobs that train on and on: a healthy one, one beside an evaluator, those with a late rank."""
    jobs.start(HEALTHY, TRAIN, *ENDLESS)
    jobs.start(EVALUATED, WITH_EVALUATOR)
    for job_id, (variant, fault) in LATE.items():
        late = ("--fault", fault, "--fault-rank", "2", "--delay", str(DELAY_SECONDS))
        jobs.start(job_id, TRAIN, "--variant", variant, *late, *ENDLESS)


@pytest.fixture(scope="module")
def hanging(stack: Stack, jobs: Jobs, training: None) -> Iterator[list[int]]:
    """Two jobs with a stopped rank; one was killed before and restarted with half its ranks.

    Yields the process ids of the stopped ranks.
    """
    of_hanging = jobs.start(HANGING, TRAIN, *ENDLESS)
    killed = jobs.start(SHRUNK, TRAIN, *SHORT)
    steps = f'rankskew_steps_total{{job_id="{SHRUNK}"}}'
    stack.wait_for_series(f"{steps} > 10", RANKS, seconds=90)
    for rank in killed:
        os.kill(rank.pid, signal.SIGKILL)  # So that nobody says goodbye.
        rank.wait()
    most = max(series.value for series in stack.prometheus.query(steps))
    of_shrunk = jobs.start(SHRUNK, TRAIN, *SHORT, ranks=2)
    # Only ranks of the second run finish more steps than those of the first had.
    stack.wait_for_series(f"{steps} > {most + 10}", 2, seconds=90)
    stopped = [of_hanging[2].pid, of_shrunk[1].pid]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    yield stopped
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def settled(stack: Stack, hanging: list[int]) -> None:
    """Every faulty job has its page, and any page that could follow has arrived."""
    for job_id in (*LATE, EVALUATED):
        stack.webhook.wait_for_alert(STRAGGLER, PATIENCE_SECONDS, job_id=job_id)
    for job_id in (HANGING, SHRUNK):
        stack.webhook.wait_for_alert(HUNG, PATIENCE_SECONDS, job_id=job_id)
    # The cost has settled by then, and a late false name, or what follows of a hang, has come.
    stack.wait_for_evaluations(5)


def pages(stack: Stack, job_id: str) -> list[ReceivedAlert]:
    return stack.webhook.pages(status="firing", job_id=job_id)


def named(stack: Stack, job_id: str) -> set[tuple[str, str | None, str | None]]:
    """Return what the pages of *job_id* name: alert, rank and stage."""
    return {
        (page.alert, page.labels.get("rank"), page.labels.get("stage"))
        for page in pages(stack, job_id)
    }


def value(stack: Stack, record: str, job_id: str) -> float | None:
    return stack.prometheus.value(f'{record}{{job_id="{job_id}"}}')


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("job_id", LATE)
def test_late_rank_is_named_with_its_stage_and_its_cost(stack: Stack, job_id: str) -> None:
    """The first page has rank, stage, cost and cause; no page names another rank.

    The cost is the wait of the three others over the step. The built-in page says the same.
    """
    stage = STAGES[job_id]
    assert named(stack, job_id) == {(STRAGGLER, "2", stage)}
    # As measured: so many ranks on two cores make it longer than planned.
    step = value(stack, "job:rankskew_step_seconds:max", job_id)
    assert step is not None
    planted = (RANKS - 1) * DELAY_SECONDS / step
    lost = value(stack, "rank:rankskew_gpus_lost:sum", job_id)
    assert lost == pytest.approx(planted, rel=0.1)

    first = pages(stack, job_id)[0]
    said, text = first.annotations, first.annotations["summary"]
    cost = re.search(rf"([\d.]+) of {RANKS} GPUs", text)
    assert all(part in text for part in (job_id, "Rank 2", slow_at(stage))), text
    assert cost is not None
    assert float(cost[1]) == pytest.approx(planted, rel=0.15)
    assert first.labels["cause"] in CAUSES
    assert said["runbook_url"].endswith("RankskewStraggler.md")

    # The process to look at, and how much slower than its peers it is: what was planted.
    facts = re.search(r" PID (\d+)\. (\d+) % slower than its peers, mostly in (\w+)", said["facts"])
    assert said["headline"].startswith(f"rank 2 slow {slow_at(stage)}, steps 1.")
    assert " Cause: " in said["facts"]
    assert facts is not None, said["facts"]
    assert facts[1] in said["first"]
    assert facts[3] == stage
    assert int(facts[2]) / 100 == pytest.approx(DELAY_SECONDS / STEP_SECONDS, rel=0.3)

    verdict = stack.live_verdict(job_id)
    [late] = verdict["late"]
    assert verdict["state"] == "straggler"
    assert (late["rank"], late["stage"]) == (2, stage)
    assert late["gpus_lost"] == pytest.approx(lost, rel=0.05)


@pytest.mark.usefixtures("settled")
def test_rank_that_never_steps_is_nobodys_peer(stack: Stack) -> None:
    """Beside a rank that only evaluates, the slow one of three training ranks is named."""
    assert named(stack, EVALUATED) == {(STRAGGLER, "1", "forward")}
    assert [late["rank"] for late in stack.live_verdict(EVALUATED)["late"]] == [1]
    assert value(stack, "job:rankskew_ranks:sum", EVALUATED) == RANKS - 1


@pytest.mark.usefixtures("settled")
def test_healthy_job_pages_nobody(stack: Stack) -> None:
    """Judged for as long as the others, the job without a fault is silent."""
    training = "|".join((*LATE, EVALUATED, HEALTHY))
    reasons = f'job_reason:rankskew_not_judgeable:bool{{job_id=~"{training}"}}'

    assert pages(stack, HEALTHY) == []
    assert stack.live_verdict(HEALTHY)["state"] == "healthy"
    assert value(stack, "job:rankskew_ranks:sum", HEALTHY) == RANKS
    assert stack.prometheus.query(reasons) == []


@pytest.mark.usefixtures("settled")
def test_stopped_rank_is_named_once(stack: Stack) -> None:
    """`kill -STOP` pages once, with that rank's name, and nothing else; all GPUs are lost.

    The hang of a job that was killed, and started again with two ranks, names one of those: dead
    copies of an earlier run are no suspects.
    """
    lost = f'max_over_time(job_kind:rankskew_gpus_lost:sum{{job_id="{HANGING}",kind="hung"}}[1m])'
    alerts = [(page.alert, page.labels.get("rank")) for page in pages(stack, HANGING)]

    assert alerts == [(HUNG, "2")]
    assert "rank 2" in pages(stack, HANGING)[0].annotations["description"]
    assert stack.prometheus.value(lost) == RANKS
    assert {(alert, rank) for alert, rank, _ in named(stack, SHRUNK)} == {(HUNG, "1")}


@pytest.mark.usefixtures("settled")
def test_page_is_resolved_when_the_rank_goes_on(stack: Stack, hanging: list[int]) -> None:
    """`kill -CONT` resolves it."""
    os.kill(hanging[0], signal.SIGCONT)
    resolved = stack.webhook.wait_for_alert(HUNG, 60, status="resolved", job_id=HANGING)

    assert resolved.labels["rank"] == "2"


def test_killed_exporter_costs_neither_steps_nor_counts(stack: Stack, jobs: Jobs) -> None:
    """Training does not notice; after a restart every rank's counters are whole."""
    jobs.end()
    job, steps_made, step_seconds = "restart", 250, 0.05
    steps_asked = ("--steps", str(steps_made), "--step-seconds", str(step_seconds))
    said = jobs.start(job, TRAIN, *steps_asked)[0].output
    selector = f'{{job_id="{job}"}}'
    steps = f"rankskew_steps_total{selector}"
    stack.wait_for_series(f"{steps} > 10", RANKS, seconds=120)
    stack.exporter.kill()
    # A line is 50 steps: long enough for pushes to fail, while training goes on.
    lines = said.read_text().count("\n")
    assert wait_for(lambda: said.read_text().count("\n") >= lines + 2 or None, 60)
    stack.exporter.start()
    stack.wait_for_series(f"rankskew_rank_finished{selector} == 1", RANKS, seconds=120)
    text = get(f"{stack.exporter.url}/metrics").decode()

    prometheus = stack.prometheus
    assert f"step {steps_made} " in said.read_text()
    assert [series.value for series in prometheus.query(steps)] == [steps_made] * RANKS
    assert {series.value for series in prometheus.query(f"resets({steps}[5m])")} == {0}
    # Counts of trouble begin with the first one.
    assert prometheus.query(f"rankskew_probe_errors_total{selector}") == []
    failures = prometheus.query(f"rankskew_probe_push_failures_total{selector}")
    assert len(failures) == RANKS
    assert all(series.value >= 1 for series in failures)
    # The stages of all steps are there, those from while nobody listened too.
    each = f"sum by (rank) (rankskew_stage_seconds_total{selector}) / {steps_made}"
    assert all(s.value >= step_seconds for s in prometheus.query(each))
    assert f'rankskew_rank_finished{{job_id="{job}"' in text
