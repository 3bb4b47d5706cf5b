"""A rank that stops hangs its job: the page names it, and is resolved when it goes on."""

import os
import signal

import pytest

from demo.stack import Training
from tests.e2e.conftest import HANGING, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_stopped_rank_is_named_and_resolved_when_it_continues(stack: Stack) -> None:
    """`kill -STOP` on rank 2 pages its name, `kill -CONT` resolves the page."""
    with Training(
        stack.directory / HANGING,
        ["--steps", "1000000"],
        exporter=stack.exporter.target,
        job_id=HANGING,
    ) as training:
        stack.wait_for_series(f'rankskew_steps_total{{job_id="{HANGING}"}} > 10', 4, seconds=90)
        stopped = training.rank_pid(2)
        os.kill(stopped, signal.SIGSTOP)
        try:
            page = stack.webhook.wait_for_alert("RankskewJobHung", 90, job_id=HANGING)
        finally:
            os.kill(stopped, signal.SIGCONT)
        resolved = stack.webhook.wait_for_alert(
            "RankskewJobHung", 60, status="resolved", job_id=HANGING
        )
        hung = stack.webhook.pages("RankskewJobHung", job_id=HANGING)

    assert page.labels["rank"] == "2"
    assert "rank 2" in page.annotations["description"]
    assert resolved.labels["rank"] == "2"
    assert {p.labels["rank"] for p in hung} == {"2"}
