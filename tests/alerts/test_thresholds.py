"""Thresholds are series: every job has each of them, and its own value wins."""

from pathlib import Path

import pytest

from exporter.vocabulary import thresholds
from tests.alerts.promtool import Expect, assert_rules

VALUE = "job:rankskew_threshold:value"
DEFAULTS = {each.name: each.value for each in thresholds.defaults().values()}
NODE = 'rankskew_node_ranks{job_id="j",instance="n",state="beating"}'
ELSEWHERE = NODE.replace("{", '{cluster="c",')
WITHOUT_PROBE = 'rankskew_gpu_rank_info{job_id="j",local_rank="0",source="environ"}'
IDLE = 'rankskew_gpus_visible{%sinstance="n"}'
OVERRIDE = "rankskew:threshold:override"


def values(who: str, **changed: float) -> dict[str, float]:
    """Return all thresholds of a job, with those that were *changed*."""
    return {f'{VALUE}{{{who}name="{n}"}}': value for n, value in (DEFAULTS | changed).items()}


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        pytest.param({NODE: 1}, values('job_id="j",'), id="a job has all the defaults"),
        pytest.param({WITHOUT_PROBE: 1}, values('job_id="j",'), id="without the probe, too"),
        pytest.param({WITHOUT_PROBE: 1, NODE: 1}, values('job_id="j",'), id="and but once"),
        pytest.param(
            {IDLE % "": 8, IDLE % 'cluster="c",': 8},
            values("") | values('cluster="c",'),
            id="GPUs without a job have them by an empty job_id, in each cluster",
        ),
        pytest.param(
            {
                NODE: 1,
                OVERRIDE + '{job_id="j",name="hang_seconds"}': 10,
                OVERRIDE + '{job_id="other",name="skew_ratio"}': 0.5,
            },
            values('job_id="j",', hang_seconds=10)
            | {f'{VALUE}{{job_id="other",name="skew_ratio"}}': 0.5},
            id="an override is of its job and its name",
        ),
        pytest.param(
            {
                NODE: 1,
                NODE.replace('"j"', '"own"'): 1,
                OVERRIDE + '{name="hang_seconds"}': 300,
                OVERRIDE + '{job_id="own",name="hang_seconds"}': 10,
            },
            values('job_id="j",', hang_seconds=300) | values('job_id="own",', hang_seconds=10),
            id="the job's own counts, then the one for all jobs, then the default",
        ),
        pytest.param(
            {
                NODE: 1,
                ELSEWHERE: 1,
                OVERRIDE + '{cluster="c",job_id="j",name="hang_seconds"}': 10,
                OVERRIDE + '{cluster="c",name="skew_ratio"}': 0.5,
            },
            values('job_id="j",')
            | values('cluster="c",job_id="j",', hang_seconds=10, skew_ratio=0.5),
            id="two clusters' jobs of one name share no override",
        ),
    ],
)
def test_every_job_has_every_threshold(
    tmp_path: Path, series: dict[str, float], expected: dict[str, float]
) -> None:
    """Its own value, or the one for all jobs, or the default."""
    inputs = [{"series": name, "values": f"{value}x10"} for name, value in series.items()]

    assert len(DEFAULTS) > 20
    assert_rules(tmp_path, inputs, [Expect(VALUE, 30, expected)], groups=["thresholds"])
