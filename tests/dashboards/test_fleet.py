"""The table of jobs on the fleet dashboard: its order, and whom each job waits for."""

from pathlib import Path
from typing import Final

import pytest

from tests.alerts.promtool import Expect, assert_rules
from tests.dashboards.dashboard_files import targets

STATE: Final = "job:rankskew_state:info"
LOST: Final = "job:rankskew_gpus_lost:sum"
GPU: Final = 'instance="n1:9917",gpu_uuid="GPU-1"'
JOBS: Final = {t.ref: t for t in targets() if (t.dashboard, t.panel) == ("fleet", "Jobs")}
# Two clusters have a job named big; a third job is not in any.
RECORDED: Final = [
    (f'{STATE}{{cluster="a",job_id="big",state="straggler"}}', 1),
    (f'{STATE}{{cluster="b",job_id="big",state="hung"}}', 1),
    (f'{STATE}{{cluster="b",job_id="dark",state="not_judgeable"}}', 1),
    (f'{STATE}{{job_id="well",state="healthy"}}', 1),
    (f'{STATE}{{job_id="over",state="finished"}}', 1),
    (f'{STATE}{{job_id="lone",state="ranks_missing"}}', 1),
    ('rank:rankskew_silent_seconds:max{job_id="lone",rank="3",instance="n4:9917"}', 40),
    ('rankskew_node_ranks{job_id="lone",state="silent",instance="n4:9917"}', 1),
    (f'{STATE}{{job_id="dead",state="ranks_missing"}}', 1),
    *(
        (f'rankskew_node_ranks{{job_id="dead",state="{state}",instance="n{node}:9917"}}', count)
        for state, count in (("silent", 4), ("beating", 0))
        for node in (5, 6)
    ),
    ('job:rankskew_slowdown:max{cluster="a",job_id="big"}', 1.5),
    ('job:rankskew_slowdown:max{cluster="b",job_id="big"}', 1),
    (f'{LOST}{{cluster="a",job_id="big"}}', 3),
    (f'{LOST}{{cluster="b",job_id="big"}}', 8),
    (f'{LOST}{{job_id="well"}}', 0.5),
    ('job:rankskew_hung:seconds{cluster="b",job_id="big"}', 120),
    (
        "rank_stage:rankskew_hang_suspect:group"
        '{cluster="b",job_id="big",rank="7",stage="frozen",instance="n1:9917"}',
        1,
    ),
    # Its GPU is lost, which is reported along with an XID error.
    (f'rankskew_gpu_fault{{cluster="b",job_id="big",rank="7",fault="lost",{GPU}}}', 1),
    (f'rankskew_gpu_fault{{cluster="b",job_id="big",rank="7",fault="xid",detail="79",{GPU}}}', 1),
    (
        "rank:rankskew_late:ratio{"
        'cluster="a",job_id="big",rank="2",instance="n2:9917",nodename="n2",kind="node",'
        'stage="data"}',
        0.3,
    ),
    (
        "rankskew_late_cause_info{"
        'cluster="a",job_id="big",rank="2",instance="n2:9917",cause="input",detail="nfs",'
        'sentence="an operation on /data (nfs) takes 90 ms, its peers\' 3"}',
        1,
    ),
    ('rank:rankskew_gpus_lost:sum{cluster="a",job_id="big",rank="2",instance="n2:9917"}', 3),
    # Late, but not worth anybody's time.
    (
        "rank:rankskew_late:ratio"
        '{job_id="well",rank="1",instance="n3:9917",kind="mild",stage="data"}',
        0.03,
    ),
    ('job_reason:rankskew_not_judgeable:bool{cluster="b",job_id="dark",reason="no_sync"}', 1),
    # The other reason explains this one, whatever their names.
    (
        'job_reason:rankskew_not_judgeable:bool{cluster="b",job_id="dark",reason="join_incomplete"}',
        1,
    ),
]
ORDER: Final = {
    '{key="b/big", cluster="b", to_cluster="b", job_id="big", state="hung"}': 1e9 + 8,
    '{key="b/dark", cluster="b", to_cluster="b", job_id="dark", state="not_judgeable"}': 1e6,
    '{key="/lone", to_cluster="All", job_id="lone", state="ranks_missing"}': 1e6,
    '{key="/dead", to_cluster="All", job_id="dead", state="ranks_missing"}': 1e6,
    '{key="a/big", cluster="a", to_cluster="a", job_id="big", state="straggler"}': 3,
    '{key="/well", to_cluster="All", job_id="well", state="healthy"}': 0.5,
    '{key="/over", to_cluster="All", job_id="over", state="finished"}': -2,
}
WAITS_FOR: Final = {
    '{key="b/big", rank="7", who="rank 7 · frozen"}': 1,
    '{key="a/big", rank="2", who="node n2 · data"}': 1,
}
REASONS: Final = {
    '{key="b/big", cause="GPU: lost"}': 1,
    '{key="b/dark", cause="no_sync"}': 1,
    '{key="/lone", cause="1 rank gone silent"}': 1,
    '{key="/dead", cause="8 ranks gone silent"}': 1,
    '{key="a/big", cause="loader: an operation on /data (nfs) takes 90 ms, its peers\' 3"}': 1,
}
# The steps of a job that hangs are not as long as ever: it finishes none.
SLOWDOWN: Final = {'{key="a/big"}': 1.5}


@pytest.mark.parametrize(
    ("ref", "expected"),
    [("A", ORDER), ("E", WAITS_FOR), ("F", REASONS), ("H", SLOWDOWN)],
    ids=["A", "E", "F", "H"],
)
def test_jobs_by_urgency_and_whom_they_wait_for(
    ref: str, expected: dict[str, float], tmp_path: Path
) -> None:
    """Hung jobs come first, then unjudged ones, then by GPUs lost; jobs of two clusters, or of
    none, keep apart, and a healthy job waits for nobody."""
    series = [{"series": name, "values": f"{value}x8"} for name, value in RECORDED]
    expr = JOBS[ref].substituted("")
    # Of words the table shows no value.
    shown = f"0 * ({expr}) + 1" if ref in "EF" else expr

    assert_rules(tmp_path, series, [Expect(shown, 120, expected)], groups=())
