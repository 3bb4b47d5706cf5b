"""A rank that stops hangs its job: one page names it, and is resolved when it goes on."""

import os
import signal
import time

import pytest

from devstack.parts import TrainingProcess
from devstack.webhook import ReceivedAlert
from tests.e2e.conftest import HANGING, SHRUNK, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

HUNG = "RankskewJobHung"
RANKS = 4


def training(stack: Stack, job_id: str, ranks: int = RANKS) -> TrainingProcess:
    """Return a job that trains until it is stopped."""
    return TrainingProcess(
        stack.directory / f"{job_id}-{ranks}",
        ["--steps", "1000000"],
        exporter=stack.exporter.target,
        job_id=job_id,
        ranks=ranks,
    )


def page_while_stopped(
    stack: Stack, job: TrainingProcess, rank: int, more_seconds: float = 0
) -> ReceivedAlert:
    """Stop *rank* until the page has come and *more_seconds* have gone by; return the page."""
    stopped = job.rank_pid(rank)
    os.kill(stopped, signal.SIGSTOP)
    try:
        page = stack.webhook.wait_for_alert(HUNG, 90, job_id=job.job_id)
        time.sleep(more_seconds)
    finally:
        os.kill(stopped, signal.SIGCONT)
    return page


def test_stopped_rank_is_named_once_and_resolved_when_it_continues(stack: Stack) -> None:
    """`kill -STOP` pages once, with that rank's name, and nothing else; `kill -CONT` resolves."""
    with training(stack, HANGING) as job:
        stack.wait_for_series(f'rankskew_steps_total{{job_id="{HANGING}"}} > 10', RANKS, seconds=90)
        # Five more evaluations: whatever follows from the hang would have paged.
        page = page_while_stopped(stack, job, rank=2, more_seconds=10)
        resolved = stack.webhook.wait_for_alert(HUNG, 60, status="resolved", job_id=HANGING)
        firing = stack.webhook.pages(status="firing", job_id=HANGING)
        lost = stack.prometheus.query(
            f'max_over_time(job_kind:rankskew_gpus_lost:sum{{job_id="{HANGING}",kind="hung"}}[1m])'
        )

    assert page.labels["rank"] == "2"
    assert "rank 2" in page.annotations["description"]
    assert resolved.labels["rank"] == "2"
    assert [each.alert for each in firing] == [HUNG]
    assert {each.labels["rank"] for each in firing} == {"2"}
    assert [series.value for series in lost] == [RANKS]


def test_dead_copies_of_an_earlier_run_are_no_suspects(stack: Stack) -> None:
    """A job is killed and started again with two ranks: its hang names one of them alone."""
    with training(stack, SHRUNK) as job:
        stack.wait_for_series(f'rankskew_steps_total{{job_id="{SHRUNK}"}} > 10', RANKS, seconds=90)
        for process in job.family():
            process.kill()  # So that nobody says goodbye.
        totals = stack.prometheus.query(f'rankskew_steps_total{{job_id="{SHRUNK}"}}')
        steps = max(series.value for series in totals)
    with training(stack, SHRUNK, ranks=2) as job:
        # Only ranks of the second run finish more steps than those of the first had.
        stack.wait_for_series(
            f'rankskew_steps_total{{job_id="{SHRUNK}"}} > {steps + 10}', 2, seconds=90
        )
        before = len(stack.webhook.pages())
        page = page_while_stopped(stack, job, rank=1)
        pages = stack.webhook.pages()[before:]

    assert page.labels["rank"] == "1"
    assert {each.labels.get("rank") for each in pages if each.status == "firing"} == {"1"}
