"""Runbooks are served by the exporter, with the job, the rank and its process filled in."""

from dataclasses import replace

import pytest

from exporter.live.node import PageNode
from exporter.live.page import LiveSummary, LiveView
from exporter.live.runbooks import PLACEHOLDERS, Runbooks, filled, known
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from generators.listed import alert_rules
from tests.exporter.snapshots import snapshot

RUNBOOKS = Runbooks()


def live(job_id: str = "llama") -> LiveSummary:
    """Return what node gpu-12 knows: rank 2 of a job."""
    store = RankStore(clock=lambda: 2_000.0)
    info = {"gpu_uuid": "GPU-3", "local_rank": "2"}
    store.put(snapshot(job_id=job_id, rank=2, pid=20_775, rank_info=info))
    view = LiveView(NodeJobs(store), node=PageNode("gpu-12"))
    view.sample(2_000.0, 2_000.0)
    return view.summary()


def page(name: str, job: str = "", rank: str = "", known_job: str = "llama") -> str:
    shown = RUNBOOKS.page(name, job, rank, live(known_job))
    assert shown is not None
    return shown


def test_every_runbook_is_listed_and_rendered() -> None:
    """The list leads to each one, each becomes a page with its own title, and nothing else does."""
    index = RUNBOOKS.index()
    for name in alert_rules.alerts():
        assert f'<a href="{name}">{name}</a>' in index
        assert f"<h1>{name}</h1>" in page(name)
    for name in ("../README", "RankskewNothing"):
        assert RUNBOOKS.page(name, "", "", live()) is None


def test_page_has_commands_to_be_typed_and_runs_nothing_itself() -> None:
    """The process is filled in, links keep the job or lead to the source, and no script may run."""
    shown = page("RankskewStraggler", "llama", "2")

    assert "<code>py-spy dump --pid 20775</code> on <code>gpu-12</code>" in shown
    assert "job_id=&quot;llama&quot;" in shown
    assert "nvidia-smi -q -i GPU-3 -d CLOCK" in shown
    assert "Filled in from what this exporter knows: JOB is llama" in shown
    assert "To be filled in" not in shown
    assert 'href="RankskewSlowNode?job=llama&amp;rank=2"' in shown
    assert 'href="https://github.com/rankskew/rankskew/blob/main/docs/concepts.md#' in shown
    assert "default-src 'none'; style-src 'self'; img-src 'self'" in shown
    assert "<script" not in shown


@pytest.mark.parametrize(("job", "rank"), [("", ""), ("other", "2"), ("llama", "x"), ("", "2")])
def test_what_is_not_known_stays_a_placeholder(job: str, rank: str) -> None:
    """A job or rank that the exporter does not know is no error: the page says where to read it."""
    shown = page("RankskewStraggler", job, rank)

    assert "<code>py-spy dump --pid PID</code>" in shown
    assert "<dt><code>PID</code></dt><dd>the label pid of rankskew_rank_info{" in shown


@pytest.mark.parametrize(
    "job", ["<script>alert(1)</script>", "x;reboot", "$(reboot)", "-rf", "a b"]
)
def test_no_name_becomes_a_command_or_markup(job: str) -> None:
    """Jobs name themselves: a name that a shell would read otherwise is not filled in."""
    shown = page("RankskewNotJudgeable", job, "2", known_job=job)

    assert "<code>rankskew control JOB stages</code>" in shown
    assert job not in shown


def test_only_what_this_exporter_has_seen_is_filled_in() -> None:
    """Anyone can make a link; a rank of another node has its number only, no id of ours."""
    here = live()
    moved = replace(here.jobs[0], ranks=[replace(here.jobs[0].ranks[0], pid=9)])

    assert known(here, "evil", "2") == {}
    assert known(here, "llama", "17") == {"JOB": "llama", "RANK": "17"}
    assert known(replace(here, jobs=[moved]), "llama", "2")["PID"] == "9"
    # With its namespace, as in Kubernetes.
    assert known(live("team-a/llama"), "team-a/llama", "2")["JOB"] == "team-a/llama"


def test_only_whole_words_are_filled_in() -> None:
    values = {name: "x" for name in PLACEHOLDERS}

    assert filled("RANK_PROBE=0 --pid PID /proc/PID/stat WORKER_PID", values) == (
        "RANK_PROBE=0 --pid x /proc/x/stat WORKER_PID"
    )
