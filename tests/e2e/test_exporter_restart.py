"""The exporter dies in mid-run: training does not notice, and no count is lost or doubled."""

import pytest

from devstack.parts import TrainingProcess
from devstack.process import get, wait_for
from tests.e2e.conftest import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

JOB, RANKS, STEPS = "restart", 4, 160
JOB_SELECTOR = f'{{job_id="{JOB}"}}'


def test_killed_exporter_costs_neither_steps_nor_counts(stack: Stack) -> None:
    """After SIGKILL and a restart every rank's counters are whole, and the judge speaks again."""
    steps = f"rankskew_steps_total{JOB_SELECTOR}"
    with TrainingProcess(
        stack.directory / JOB,
        ["--steps", str(STEPS)],
        exporter=stack.exporter.target,
        job_id=JOB,
        ranks=RANKS,
    ) as training:
        stack.wait_for_series(f"{steps} > {STEPS // 4}", RANKS, seconds=120)
        stack.exporter.kill()
        # Long enough for pushes to fail, short enough that training is still running.
        assert wait_for(lambda: None, seconds=4) is None
        assert training.exit_code is None
        stack.exporter.start()
        stack.wait_for_series(f"rankskew_job_gpus_lost{JOB_SELECTOR}", 4, seconds=15)
        ended = wait_for(lambda: training.exit_code, seconds=120, every=0.2)
        assert ended == 0, training.last_lines()
        stack.wait_for_series(f"rankskew_rank_finished{JOB_SELECTOR} == 1", RANKS, seconds=30)
        text = get(f"{stack.exporter.url}/metrics").decode()

    prometheus = stack.prometheus
    assert [series.value for series in prometheus.query(steps)] == [STEPS] * RANKS
    assert {s.value for s in prometheus.query(f"resets({steps}[5m])")} == {0}
    # Counts of trouble begin with the first one.
    assert prometheus.query(f"rankskew_probe_errors_total{JOB_SELECTOR}") == []
    failures = prometheus.query(f"rankskew_probe_push_failures_total{JOB_SELECTOR}")
    assert len(failures) == RANKS
    assert all(series.value >= 1 for series in failures)
    # The stages of all steps are there, those from while nobody listened too.
    busy_and_wait = prometheus.query(
        f"sum by (rank) (rankskew_stage_seconds_total{JOB_SELECTOR})"
        f" / sum by (rank) (rankskew_steps_total{JOB_SELECTOR})"
    )
    assert len(busy_and_wait) == RANKS
    assert all(series.value == pytest.approx(0.2, rel=0.3) for series in busy_and_wait)
    assert f'rankskew_rank_finished{{job_id="{JOB}"' in text
