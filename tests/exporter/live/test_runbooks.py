"""Runbooks are served by the exporter, with the job, the rank and its process filled in."""

from dataclasses import replace

import pytest

from exporter.live.node import Node
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
    view = LiveView(NodeJobs(store), node=Node("gpu-12"))
    view.sample(2_000.0, 2_000.0)
    return view.summary()


def page(name: str, job: str = "", rank: str = "", known_job: str = "llama") -> str:
    shown = RUNBOOKS.page(name, job, rank, live(known_job))
    assert shown is not None
    return shown


def test_every_runbook_is_listed_and_rendered() -> None:
    """The list leads to each one, and each one becomes a page with its own title."""
    index = RUNBOOKS.index()
    for name in alert_rules.alerts():
        assert f'<a href="{name}">{name}</a>' in index
        assert f"<h1>{name}</h1>" in page(name)


def test_commands_name_the_process() -> None:
    """With a known rank, the first command can be typed as it is."""
    shown = page("RankskewStraggler", "llama", "2")

    assert "<code>py-spy dump --pid 20775</code> on <code>gpu-12</code>" in shown
    assert "job_id=&quot;llama&quot;" in shown
    assert "nvidia-smi -q -i GPU-3 -d CLOCK" in shown
    assert "Filled in from what this exporter knows: JOB is llama" in shown
    assert "To be filled in" not in shown


@pytest.mark.parametrize(("job", "rank"), [("", ""), ("other", "2"), ("llama", "x"), ("", "2")])
def test_what_is_not_known_stays_a_placeholder(job: str, rank: str) -> None:
    """A job or rank that the exporter does not know is no error: the page says where to read it."""
    shown = page("RankskewStraggler", job, rank)

    assert "<code>py-spy dump --pid PID</code>" in shown
    assert "<dt><code>PID</code></dt><dd>the label pid of rankskew_rank_info{" in shown


def test_rank_of_another_node_has_its_number_only() -> None:
    """Its process is not here, so no id of ours is given for it."""
    assert known(live(), "llama", "17") == {"JOB": "llama", "RANK": "17"}


@pytest.mark.parametrize(
    "job", ["<script>alert(1)</script>", "x;reboot", "$(reboot)", "-rf", "a b"]
)
def test_no_name_becomes_a_command_or_markup(job: str) -> None:
    """Jobs name themselves: a name that a shell would read otherwise is not filled in."""
    shown = page("RankskewNotJudgeable", job, "2", known_job=job)

    assert "<code>rankskew control JOB stages</code>" in shown
    assert job not in shown


def test_job_of_kubernetes_is_filled_in() -> None:
    """There a job is named with its namespace."""
    assert known(live("team-a/llama"), "team-a/llama", "2")["JOB"] == "team-a/llama"


def test_query_alone_fills_in_nothing() -> None:
    """A link can be made by anyone; only what this exporter has seen is put into commands."""
    assert known(live(), "evil", "2") == {}


def test_links_stay_in_the_exporter() -> None:
    """One runbook leads to the next with the same job; what is elsewhere leads to its source."""
    shown = page("RankskewStraggler", "llama", "2")

    assert 'href="RankskewSlowNode?job=llama&amp;rank=2"' in shown
    assert 'href="https://github.com/rankskew/rankskew/blob/main/docs/concepts.md#' in shown


def test_unknown_runbook_is_none() -> None:
    """Neither a name nor a path reaches a file that is no runbook."""
    assert RUNBOOKS.page("../README", "", "", live()) is None
    assert RUNBOOKS.page("RankskewNothing", "", "", live()) is None


def test_only_whole_words_are_filled_in() -> None:
    """A variable that contains a placeholder's name is left alone."""
    values = {name: "x" for name in PLACEHOLDERS}

    assert filled("RANK_PROBE=0 --pid PID /proc/PID/stat WORKER_PID", values) == (
        "RANK_PROBE=0 --pid x /proc/x/stat WORKER_PID"
    )


def test_policy_lets_nothing_run() -> None:
    """A runbook needs no script, so none may run."""
    assert "default-src 'none'; style-src 'self'; img-src 'self'" in page("RankskewStraggler")
    assert "<script" not in page("RankskewStraggler")


def test_rank_that_changes_process_changes_the_page() -> None:
    """The process is looked up when the page is asked for."""
    before = live()
    (job,) = before.jobs
    later = replace(before, jobs=[replace(job, ranks=[replace(job.ranks[0], pid=9)])])

    assert known(later, "llama", "2")["PID"] == "9"
