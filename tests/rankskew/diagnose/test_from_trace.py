"""A recorded trace: late ranks by the judge, with what they cost and what their stage says."""

from pathlib import Path

import pytest

from exporter.causes.model import Cause, Evidence, Lateness, Peers
from rankskew.diagnose import from_trace
from rankskew.diagnose.from_trace import read_trace
from rankskew.diagnose.model import BALANCED, CANNOT_TELL, FOUND, CannotTell, Report

STAGES = {"data": 0.2, "forward": 0.5, "backward": 0.8}


def trace(
    path: Path,
    late: dict[int, dict[str, float]],
    steps: int = 120,
    sync: bool = True,
    since: int = 0,
) -> Report:
    """Return the report on a trace of four ranks on two nodes.

    *late* adds seconds to stages, from the step *since* on.
    """
    own = [
        {stage: usual + late.get(rank, {}).get(stage, 0.0) for stage, usual in STAGES.items()}
        for rank in range(4)
    ]
    longest = max(sum(stages.values()) for stages in own)
    rows = [f"job_id,rank,peer_group,step,time_s,node,{','.join(f'{s}_s' for s in STAGES)},sync_s"]
    for step in range(steps):
        for rank in range(4):
            stages = own[rank] if step >= since else STAGES
            wait = longest - sum(stages.values()) + 0.01 if sync else 0.0
            cells = ",".join(f"{seconds:.4f}" for seconds in (*stages.values(), wait))
            end = (step + 1) * (longest + 0.01)
            rows.append(f"llama,{rank},all,{step},{end:.4f},{rank // 2},{cells}")
    path.write_text("\n".join(rows) + "\n")
    return read_trace(path, None)


def test_late_rank_is_named_with_its_stage_and_cost(tmp_path: Path) -> None:
    """No cause restates its stage, and a trace has nothing else; the exact accounting adds up."""
    said = trace(tmp_path / "t.csv", {2: {"data": 0.4}})
    (finding,) = said.findings

    assert (said.outcome, said.state) == (FOUND, "straggler")
    assert said.slowdown == pytest.approx(1.265, abs=0.01)
    assert (finding.rank, finding.stage, finding.cause) == (2, "data", "unknown")
    assert finding.place.node == "node1"
    assert said.unjudged[0].startswith("A trace has no data on GPUs")
    assert said.loss is not None
    # Three ranks wait 0.4 of 1.91 s.
    assert said.loss.gpus == pytest.approx((3 * 0.4 + 4 * 0.01) / 1.91, rel=1e-3)
    assert said.loss.gpus == pytest.approx(sum(part.gpus for part in said.loss.parts))
    assert said.loss.parts[0].parts[0].name == "rank 2"


def test_same_function_explains_a_rank_of_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the time in each stage, the rank's and that of its peers, and what each costs."""
    asked: list[tuple[Lateness, Evidence, Peers]] = []

    def explain(late: Lateness, evidence: Evidence, peers: Peers) -> Cause:
        asked.append((late, evidence, peers))
        return Cause("gc", "", 0.7, "it collects", "look")

    monkeypatch.setattr(from_trace, "explain", explain)
    (finding,) = trace(tmp_path / "t.csv", {2: {"data": 0.4}}).findings
    ((late, evidence, peers),) = asked

    assert (finding.what, finding.cause_text, finding.explains) == ("gc", "it collects", 0.7)
    assert finding.first == "look"
    assert (late.stage, late.kind, list(late.gpus)) == ("data", "persistent", ["data"])
    assert evidence.figures["data_seconds"] == pytest.approx(0.6)
    assert peers["data_seconds"] == pytest.approx((0.2, 0.2, 0.2))
    assert "sync_seconds" not in {*peers, *evidence.figures}


def test_checkpoint_of_one_rank_is_an_extra_duty(tmp_path: Path) -> None:
    """Its peers have no such stage at all."""
    STAGES["checkpoint"] = 0.0
    try:
        (finding,) = trace(tmp_path / "t.csv", {0: {"checkpoint": 0.5}}).findings
    finally:
        del STAGES["checkpoint"]

    assert (finding.what, finding.detail) == ("extra_duties", "checkpoint")


def test_slow_node_is_one_finding(tmp_path: Path) -> None:
    (finding,) = trace(tmp_path / "t.csv", {2: {"forward": 0.4}, 3: {"forward": 0.4}}).findings

    assert (finding.rank, finding.ranks, finding.kind) == (None, (2, 3), "node")


def test_balanced_trace(tmp_path: Path) -> None:
    said = trace(tmp_path / "t.csv", {})

    assert said.outcome == BALANCED
    assert said.sentence == "120 steps of 4 ranks in 3 min; no rank is late."


def test_too_few_steps_cannot_be_told(tmp_path: Path) -> None:
    said = trace(tmp_path / "t.csv", {2: {"data": 0.4}}, steps=10)

    assert said.outcome == CANNOT_TELL
    assert [finding.what for finding in said.findings] == ["warming_up"]


def test_short_trace_says_how_far_it_reaches(tmp_path: Path) -> None:
    """A late rank of 22 steps is told, and that it would be surer after more."""
    said = trace(tmp_path / "t.csv", {2: {"data": 0.4}}, steps=22)

    assert said.findings[0].ranks == (2,)
    assert "Seen in 22 steps only; surer after 60." in said.unjudged


def test_trace_without_waits_cannot_be_told(tmp_path: Path) -> None:
    """A rank that stands out may be one that waits."""
    said = trace(tmp_path / "t.csv", {2: {"data": 0.4}}, sync=False)

    assert said.outcome == CANNOT_TELL
    assert {"unsynced", "no_sync"} >= {finding.what for finding in said.findings}
    assert "No wait in collectives was measured, so the loss is not known." in said.unjudged


def test_rank_that_became_slower_where_no_wait_is_measured_is_compared_with_its_past(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.csv"
    late = {2: {"data": 0.4}}
    risen = trace(path, late, steps=300, sync=False, since=100)
    always = trace(path, late, steps=300, sync=False)

    assert [finding.sentence for finding in (*risen.findings, *always.findings)][::2] == [
        "Rank 2 needs 26.7% more time than before, but no wait was measured.",
        "Rank 2 needs 26.7% more time than its peers, but no wait was measured.",
    ]


def test_trouble_with_a_trace_is_one_sentence(tmp_path: Path) -> None:
    """No file, no such job, a file that is no trace, several jobs."""
    with pytest.raises(CannotTell, match=r"^Cannot read .*: No such file or directory\.$"):
        read_trace(tmp_path / "none.csv", None)
    trace(tmp_path / "a.csv", {})
    with pytest.raises(CannotTell, match=r"There is no job 'x'; there are: llama\."):
        read_trace(tmp_path, "x")
    (tmp_path / "b.csv").write_text((tmp_path / "a.csv").read_text().replace("llama", "other"))
    with pytest.raises(CannotTell, match=r"There are 2 jobs; name one with --job: llama, other\."):
        read_trace(tmp_path, None)
    (tmp_path / "b.csv").write_text("what\n")
    with pytest.raises(CannotTell, match=r"line 1: the header has no column job_id"):
        read_trace(tmp_path, None)
