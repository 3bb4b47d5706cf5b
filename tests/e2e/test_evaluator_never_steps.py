"""A rank that never steps is nobody's peer: the others are judged without it."""

import time

import pytest

from devstack.parts import ROOT, TrainingProcess
from tests.e2e.conftest import Stack
from tests.e2e.training_with_evaluator import LATE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

JOB, RANKS = "with-evaluator", 4
SCRIPT = str(ROOT / "tests" / "e2e" / "training_with_evaluator.py")


def test_late_rank_beside_an_evaluator_is_paged(stack: Stack) -> None:
    """Three of four ranks train, one of them slowly: it is named, and the job can be judged."""
    with TrainingProcess(
        stack.directory / JOB,
        [],
        exporter=stack.exporter.target,
        job_id=JOB,
        ranks=RANKS,
        script=("-m", "rank_probe", SCRIPT),
    ):
        page = stack.webhook.wait_for_alert("RankskewStraggler", 120, job_id=JOB)
        verdict = stack.live_verdict(JOB)
        reasons = reasons_left(stack)
        judged = stack.prometheus.value(f'job:rankskew_ranks:sum{{job_id="{JOB}"}}')

    assert (page.labels["rank"], page.labels["stage"]) == (str(LATE), "forward")
    assert [late["rank"] for late in verdict["late"]] == [LATE]
    assert judged == RANKS - 1
    assert reasons == []
    assert {each.labels.get("rank") for each in stack.webhook.pages(job_id=JOB)} == {str(LATE)}


def reasons_left(stack: Stack) -> list[object]:
    """Return why the job cannot be judged, once two evaluations had the time to see that it is."""
    until = time.monotonic() + 15
    while True:
        reasons: list[object] = [
            *stack.prometheus.query(f'job_reason:rankskew_not_judgeable:bool{{job_id="{JOB}"}}')
        ]
        if not reasons or time.monotonic() > until:
            return reasons
        time.sleep(0.5)
