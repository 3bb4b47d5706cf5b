"""A slow rank pages somebody, by name and stage, wherever its delay sits; a healthy job nobody.

For each way to train, five real four-rank jobs run at once: one for each place of the fault and a
healthy one. Devices are emulated by sleeping, so that twenty ranks fit on two cores.
"""

import json
import re
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest

from demo.train import VARIANTS
from devstack.process import StackProcess, wait_for
from devstack.webhook import ReceivedAlert
from exporter.vocabulary.words import slow_at
from tests.e2e.conftest import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

RANKS, LATE = 4, "2"
STEP_SECONDS, DELAY_SECONDS = 0.4, 0.2
STAGE_OF = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "after_optimizer": "other",
}
# Each delay is a sleep of the main thread: its line is seen in seconds, and is unknown until then.
CAUSES = {"code", "unknown"}
HEALTHY = "none"
PATIENCE_SECONDS = 240.0


@dataclass
class Outcome:
    """What the jobs of one variant led to, by their fault; *live* is the built-in page."""

    variant: str
    pages: dict[str, list[ReceivedAlert]]
    gpus_lost: dict[str, float | None]
    step_seconds: dict[str, float | None]
    live: dict[str, dict[str, Any]]
    healthy_coverage: float | None
    not_judgeable: list[dict[str, str]]

    def planted_gpus(self, fault: str) -> float:
        """Return what the fault costs: the wait of all other ranks over the step as measured.

        Twenty ranks on two cores make it longer than planned.
        """
        step = self.step_seconds[fault]
        assert step is not None
        return (RANKS - 1) * DELAY_SECONDS / step


def arguments(variant: str, fault: str) -> list[str]:
    """Return the arguments of demo/train.py for a job that runs until it is stopped."""
    steps = ["--step-seconds", str(STEP_SECONDS), "--steps", "1000000"]
    late = ["--fault", fault, "--fault-rank", LATE, "--delay", str(DELAY_SECONDS)]
    return ["--variant", variant, *steps, *late]


@pytest.fixture(scope="module", params=VARIANTS)
def outcome(request: pytest.FixtureRequest, stack: Stack) -> Outcome:
    """The pages and the cost, once every faulty job was paged or patience ran out."""
    variant: str = request.param
    jobs = {fault: f"{variant}-{fault}" for fault in (*STAGE_OF, HEALTHY)}
    trainings = {job_id: arguments(variant, fault) for fault, job_id in jobs.items()}
    command = [sys.executable, "-m", "tests.e2e.forked_ranks", str(RANKS), json.dumps(trainings)]
    settings = {"RANKSKEW_EXPORTER": stack.exporter.target, "OMP_NUM_THREADS": "1"}
    log = stack.directory / f"{variant}.log"
    with StackProcess("the training", command, log, settings) as training:

        def all_paged() -> bool | None:
            training.check_alive()
            named = [
                stack.webhook.pages("RankskewStraggler", "firing", job_id=jobs[fault])
                for fault in STAGE_OF
            ]
            return True if all(named) else None

        wait_for(all_paged, PATIENCE_SECONDS, every=0.5)
        # Two more evaluations: the cost has settled, and a late false name would have come.
        time.sleep(10)
        return outcome_of(stack, variant, jobs)


def outcome_of(stack: Stack, variant: str, jobs: dict[str, str]) -> Outcome:
    """Return what *jobs*, by their fault, have led to by now."""
    cost = 'rank:rankskew_gpus_lost:sum{{job_id="{}"}}'.format
    step = 'job:rankskew_step_seconds:max{{job_id="{}"}}'.format
    coverage = f'job:rankskew_coverage:ratio{{job_id="{jobs[HEALTHY]}"}}'
    reasons = f'job_reason:rankskew_not_judgeable:bool{{job_id=~"{variant}-.*"}}'
    return Outcome(
        variant,
        {fault: stack.webhook.pages(job_id=job_id) for fault, job_id in jobs.items()},
        {fault: stack.prometheus.value(cost(job_id)) for fault, job_id in jobs.items()},
        {fault: stack.prometheus.value(step(job_id)) for fault, job_id in jobs.items()},
        {fault: stack.live_verdict(job_id) for fault, job_id in jobs.items()},
        stack.prometheus.value(coverage),
        [series.labels for series in stack.prometheus.query(reasons)],
    )


@pytest.mark.parametrize("fault", STAGE_OF)
def test_page_names_the_late_rank_and_its_stage_and_nobody_else(
    outcome: Outcome, fault: str
) -> None:
    """One straggler is paged: rank 2, in the stage where its delay was planted."""
    named = {
        (page.alert, page.labels.get("rank"), page.labels.get("stage"))
        for page in outcome.pages[fault]
    }

    assert named == {("RankskewStraggler", LATE, STAGE_OF[fault])}


@pytest.mark.parametrize("fault", STAGE_OF)
def test_cost_is_what_the_others_wait(outcome: Outcome, fault: str) -> None:
    """GPUs lost is the wait of three ranks over the step, to a tenth."""
    assert outcome.gpus_lost[fault] == pytest.approx(outcome.planted_gpus(fault), rel=0.1)


@pytest.mark.parametrize("fault", STAGE_OF)
def test_first_page_has_the_cost_and_the_cause(outcome: Outcome, fault: str) -> None:
    """Nobody has to wait for a second notification: the number is right in the first, and why."""
    first = outcome.pages[fault][0]
    cost = re.search(rf"([\d.]+) of {RANKS} GPUs", first.annotations["summary"])

    assert cost is not None
    assert float(cost[1]) == pytest.approx(outcome.planted_gpus(fault), rel=0.15)
    assert first.labels["cause"] in CAUSES
    assert " Cause: " in first.annotations["facts"]


@pytest.mark.parametrize("fault", STAGE_OF)
def test_first_page_has_the_facts(outcome: Outcome, fault: str) -> None:
    """The process to look at, and how much slower than its peers it is: what was planted."""
    said = outcome.pages[fault][0].annotations
    facts = re.search(r" PID (\d+)\. (\d+) % slower than its peers, mostly in (\w+)", said["facts"])

    assert said["headline"].startswith(f"rank {LATE} slow {slow_at(STAGE_OF[fault])}, steps 1.")
    assert facts is not None, said["facts"]
    assert facts[1] in said["first"]
    assert facts[3] == STAGE_OF[fault]
    assert int(facts[2]) / 100 == pytest.approx(DELAY_SECONDS / STEP_SECONDS, rel=0.3)


@pytest.mark.parametrize("fault", STAGE_OF)
def test_live_page_says_the_same_as_the_alert(outcome: Outcome, fault: str) -> None:
    """The built-in page names that rank and stage, and the cost that Prometheus has."""
    verdict = outcome.live[fault]
    named = [(late["rank"], late["stage"]) for late in verdict["late"]]

    assert verdict["state"] == "straggler"
    assert named == [(int(LATE), STAGE_OF[fault])]
    assert verdict["late"][0]["gpus_lost"] == pytest.approx(outcome.gpus_lost[fault], rel=0.05)


@pytest.mark.parametrize("fault", STAGE_OF)
def test_page_can_be_read_at_night(outcome: Outcome, fault: str) -> None:
    """The text names job, rank, stage and GPUs; the link leads to a runbook."""
    page = outcome.pages[fault][0]
    text = page.annotations["summary"]

    assert f"{outcome.variant}-{fault}" in text
    assert f"Rank {LATE}" in text
    assert slow_at(STAGE_OF[fault]) in text
    assert f"of {RANKS} GPUs" in text
    assert page.annotations["runbook_url"].endswith("RankskewStraggler.md")


def test_healthy_job_of_the_same_length_pages_nobody(outcome: Outcome) -> None:
    """Judged for as long as the others, the job without a fault is silent."""
    assert outcome.pages[HEALTHY] == []
    assert outcome.live[HEALTHY]["state"] == "healthy"
    assert outcome.healthy_coverage == pytest.approx(1, abs=0.1)
    assert outcome.not_judgeable == []
