"""`rankskew replay` reports who was slow in a recorded run, or in one line why it cannot."""

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankskew.__main__ import main
from rankskew.render import render
from rankskew.replay.judge import confidence, longer
from rankskew.replay.replay import ReplayedJob, in_words, replay
from rankskew.replay.traces import read_traces
from tests.exporter.recorded import record
from tests.printed import assert_golden

TRACES = Path(__file__).parents[1] / "fixtures" / "traces"
Capture = pytest.CaptureFixture[str]


def printed(capsys: Capture, *arguments: object, status: int | None = None) -> str:
    """Return what it prints; its *status* is 0 for nothing, 1 for something, 2: it cannot tell."""
    assert main(["replay", *map(str, arguments)]) in ((0, 1, 2) if status is None else (status,))
    output = capsys.readouterr()
    assert output.out
    return output.out


def job(capsys: Capture, *arguments: object, status: int | None = None) -> dict[str, Any]:
    (found,) = json.loads(printed(capsys, *arguments, "--json", status=status))["jobs"]
    assert isinstance(found, dict)
    return found


def named(found: dict[str, Any]) -> dict[int, str]:
    """Return the stage of each rank that is late."""
    return {
        finding["rank"]: finding["stage"]
        for finding in found["findings"]
        if finding["kind"] == "persistent"
    }


def in_figures_and_words(path: Path) -> tuple[ReplayedJob, str]:
    """Return what is found in the trace at *path*, judged once."""
    (run,) = read_traces([path])
    found = replay(run)
    return found, render(in_words(found))


def without(path: Path, dropped: Callable[[int, int], bool]) -> Path:
    """Take the rows of a rank and step out of a trace."""
    header, *rows = path.read_text().splitlines()
    kept = [row for row in rows if not dropped(int(row.split(",")[1]), int(row.split(",")[3]))]
    path.write_text("\n".join([header, *kept, ""]))
    return path


def test_late_rank_is_named_with_time_stage_and_cost(tmp_path: Path, capsys: Capture) -> None:
    """A rank half a step late from step 100 on is named within 20 steps, and what it costs."""
    path = record(
        tmp_path / "a.csv",
        late=lambda rank, step: 0.5 * (rank == 3 and 100 <= step < 250),
        steps=400,
    )
    found = job(capsys, path, status=1)

    assert (found["job_id"], found["attempt"], found["ranks"], found["steps"]) == ("j", 0, 8, 400)
    assert (found["source"], found["not_judgeable"]) == ("judge", [])
    (finding,) = found["findings"]
    assert (finding["kind"], finding["severity"]) == ("persistent", "critical")
    assert (finding["rank"], finding["ranks"], finding["peer_group"]) == (3, [3], "pp0")
    assert (finding["instance"], finding["stage"]) == ("node1", "backward")
    assert finding["onset_s"] == pytest.approx(102, abs=3)
    assert 5 < finding["named_s"] - finding["onset_s"] < 37
    assert 102 + 150 * 1.5 < finding["cleared_s"] < 102 + 150 * 1.5 + 45
    assert finding["ratio"] == pytest.approx(0.5, abs=0.05)
    assert finding["gpus_lost"] == pytest.approx(7 * 0.5 / 1.53, rel=0.1)
    assert found["gpus_lost_by_kind"]["persistent"] == pytest.approx(7 * 0.5 * 150 / 480, rel=0.1)
    assert sum(found["gpus_lost_by_kind"].values()) == pytest.approx(found["gpus_lost"])
    assert found["slowdown"] == pytest.approx(475 / 400, rel=0.02)


def test_ranks_that_nobody_waits_for_longer_are_nobodys_fault(
    tmp_path: Path, capsys: Capture
) -> None:
    """Equal ranks; or workers on shares of GPUs, a quarter apart for good: none stands out.

    The shape of job 2 of Alibaba's mini-batch times: compute alone, a sample every ten seconds.
    """
    healthy = job(capsys, record(tmp_path / "a.csv", steps=200), status=0)
    shape = {"ranks": 10, "steps": 250, "every_seconds": 10.0, "synced": False}
    apart = record(tmp_path / "b.csv", late=lambda rank, step: 0.03 * rank - 0.18, **shape)  # type: ignore[arg-type]

    assert (healthy["findings"], healthy["slowdown"]) == ([], 1.0)
    assert job(capsys, apart)["findings"] == []


def test_real_job_with_a_slow_worker(tmp_path: Path, capsys: Capture) -> None:
    """In ByteDance's trace the worker that was slowed down is named, and no other."""
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.decompress((TRACES / "bytedance_AR.csv.gz").read_bytes()))
    found = job(capsys, path)
    (finding,) = found["findings"]

    assert (finding["rank"], finding["kind"], finding["onset_s"]) == (0, "persistent", 0)
    assert found["slowdown"] == pytest.approx(2.168, abs=0.01)


def test_pipeline_stage_that_gets_slower_is_told(tmp_path: Path) -> None:
    """Where no rank is late against its peers, what changed is: stage, group, how much, when."""
    path = record(
        tmp_path / "a.csv",
        late=lambda rank, step: 0.25 * (rank >= 4 and step >= 300),
        stage="forward",
        group_work=(1.0, 1.0),
        steps=600,
    )
    found, said = in_figures_and_words(path)
    (finding,) = [one for one in found.findings if one.kind == "change"]

    assert (finding.peer_group, finding.stage, finding.rank) == ("pp1", "forward", None)
    assert finding.ratio == pytest.approx(2.0, abs=0.1)
    assert finding.onset_s == pytest.approx(300 * 1.02, abs=10)
    assert not [one for one in found.findings if one.kind == "persistent"]
    longer = "Forward of peer group pp1 has taken 2.00 times as long as before"
    assert longer in said


@pytest.mark.parametrize(("every_seconds", "step_seconds"), [(10.0, 1.0), (45.0, 30.0)])
def test_sampled_steps_are_judged(
    tmp_path: Path, capsys: Capture, every_seconds: float, step_seconds: float
) -> None:
    """One step in ten, or steps of half a minute: the late rank is still named."""
    path = record(
        tmp_path / "a.csv",
        late=lambda rank, step: 0.5 * (rank == 3),
        step_seconds=step_seconds,
        steps=int(1500 / every_seconds),
        every_seconds=every_seconds,
    )

    assert named(job(capsys, path)) == {3: "backward"}


def test_short_trace_can_be_stretched(tmp_path: Path, capsys: Capture) -> None:
    """A rank that is a little late in seconds of fast steps is not believed; in minutes it is."""
    path = record(
        tmp_path / "a.csv",
        late=lambda rank, step: 0.07 * (rank == 6),
        step_seconds=0.04,
        steps=160,
        noise=0.01,
    )
    short, long = job(capsys, path), job(capsys, "--time-scale=25", path)

    assert (named(short), named(long)) == ({}, {6: "backward"})
    assert long["seconds"] == pytest.approx(25 * short["seconds"], rel=1e-3)
    assert long["gpus_lost"] == pytest.approx(short["gpus_lost"])


def test_wait_that_was_not_measured_is_told_as_such(tmp_path: Path) -> None:
    """Without it nobody knows who waits: the reason, and whose time stands out, from when to when.

    Nobody is told who always was a little apart.
    """
    path = record(
        tmp_path / "a.csv",
        late=lambda rank, step: 0.5 * (rank == 3 and 200 <= step < 500) + 0.08 * (rank == 6),
        synced=False,
        steps=800,
    )
    found, said = in_figures_and_words(path)
    (finding,) = found.findings

    assert (finding.kind, finding.severity, finding.rank) == ("unsynced", "info", 3)
    assert finding.gpus_lost is None
    assert finding.onset_s == pytest.approx(215, abs=5)
    assert 650 < (finding.cleared_s or 0.0) < 750
    assert (found.source, found.not_judgeable, found.slowdown) == ("none", ["no_sync"], None)
    assert "more time than before, but no wait was measured" in said
    assert "Lost, if all waited for the slowest" in said


def test_ranks_may_come_and_go(tmp_path: Path, capsys: Capture) -> None:
    """Each period with the same ranks is judged separately; a rank late throughout is one finding.

    Steps that some rank lacks now and then are left out. If no step has all ranks, the loss is
    unknown, not 0.
    """
    path = without(
        record(tmp_path / "a.csv", late=lambda rank, step: 0.5 * (rank == 3), steps=600),
        lambda rank, step: (
            (rank >= 6 and step >= 200) or (rank == 5 and step < 400) or (rank + 7 * step) % 97 == 0
        ),
    )
    found, said = in_figures_and_words(path)
    (finding,) = found.findings

    assert found.whole_steps == 185 + 190 + 188
    assert (finding.rank, finding.onset_s, finding.cleared_s) == (3, 0, None)
    assert "(37 more lack a rank and are left out)" in said
    assert "Ranks come and go; 3 periods with the same ranks are judged each." in said
    apart = without(record(path, ranks=2, steps=2), lambda rank, step: rank == step)
    unknown = job(capsys, apart, status=2)
    assert (unknown["whole_steps"], unknown["source"]) == (0, "none")
    assert (unknown["gpus_lost"], unknown["gpus_lost_by_kind"]) == (None, {})
    assert unknown["slowdown"] is None


# ---- In words ----------------------------------------------------------------------------------


def told(path: Path, **changes: Any) -> str:
    """Return the text about the trace at *path*, with *changes* of what was found."""
    (run,) = read_traces([path])
    return render(in_words(replace(replay(run), **changes)))


def test_texts_are_the_golden_ones(tmp_path: Path) -> None:
    """One line for each finding, and the four kinds with the ranks and stages that cost.

    A rank may be late without making the steps longer; each attempt is a job of its own; what
    cannot be accounted for is said, and is no error.
    """
    shape: dict[str, Any] = {"noise": 0.0, "steps": 120}
    late = record(tmp_path / "a.csv", late=lambda rank, step: 0.5 * (rank == 3), **shape)
    texts = {"late rank": told(late), "no slowdown": told(late, slowdown=1.004)}
    kinds: dict[str, dict[str, Any]] = {
        "slow node": {"late": lambda rank, step: 0.3 * (rank in (2, 3))},
        "pauses": {"late": lambda rank, step: 5.0 * (rank == 3 and step % 50 == 49), "steps": 600},
        "rotating": {"late": lambda rank, step: 0.5 * (rank == step * 3 % 8), "steps": 400},
        "group": {"group_work": (1.0, 1.3), "steps": 400},
        "common": {"communication": 0.8, "steps": 400},
    }
    for name, kind in kinds.items():
        texts[name] = told(record(tmp_path / "b.csv", **(shape | kind)))
    texts["few rows"] = told(without(late, lambda rank, step: rank == 7 and step % 10 > 0))
    short = record(tmp_path / "c.csv", ranks=2, steps=3, noise=0.0)
    texts["a step lacks a rank"] = told(without(short, lambda *at: at == (1, 2)))
    texts["none has all"] = told(without(short, lambda rank, step: rank == step % 2))
    assert_golden("replay", texts)


# ---- Traces too short for the judge are judged as far as they reach, and that is said ------------

Late = Callable[[int, int], float]


def judged(path: Path, late: Late, **shape: float) -> ReplayedJob:
    """Return the replay of a trace of steps of 20 s."""
    path = record(path / "a.csv", late=late, step_seconds=20.0, **({"steps": 22} | shape))  # type: ignore[arg-type]
    (run,) = read_traces([path])
    return replay(run)


@pytest.mark.parametrize(("synced", "steps"), [(True, 22), (False, 22), (True, 100)])
def test_stage_that_takes_longer_on_all_ranks_is_told(
    tmp_path: Path, synced: bool, steps: int
) -> None:
    one = judged(tmp_path, lambda rank, step: 0.5 * (step >= 12), steps=steps, synced=synced)
    (change,) = one.findings

    assert (change.kind, change.rank, change.stage) == ("change", None, "backward")
    assert change.ratio == pytest.approx(2.0, abs=0.1)
    assert change.onset_s == pytest.approx(12 * 21, abs=15)
    assert change.cleared_s is None
    assert list(one.not_judgeable) == ([] if synced else ["no_sync"])


def test_confidence_is_said_in_words(tmp_path: Path) -> None:
    """Where nothing was found, it is said as well."""
    said = render(in_words(judged(tmp_path, lambda rank, step: 0.0)))

    assert "Nothing found.\nSeen in 22 steps only; surer after 60.\n" in said
    assert [confidence(steps) is None for steps in (13, 14, 59, 60)] == [True, False, False, True]


@pytest.mark.parametrize(
    ("late", "synced", "onset"),
    [
        pytest.param(lambda rank, step: 0.5 * (rank == 3), True, 0, id="always"),
        pytest.param(lambda rank, step: 0.5 * (rank == 3 and step >= 11), True, 231, id="since"),
        pytest.param(lambda rank, step: 0.5 * (rank == 3), False, 0, id="always, no sync"),
        pytest.param(
            lambda rank, step: 0.2 * (rank == 3 and step >= 11), False, 231, id="since, no sync"
        ),
    ],
)
def test_late_rank_is_told(tmp_path: Path, late: Late, synced: bool, onset: float) -> None:
    """With its cost, if the waits were measured."""
    one = judged(tmp_path, late, synced=synced)
    (finding,) = one.findings

    assert (finding.rank, finding.stage) == (3, "backward")
    kind, source = ("persistent", "judge") if synced else ("unsynced", "none")
    assert (finding.kind, one.source) == (kind, source)
    assert finding.onset_s == pytest.approx(onset, abs=35)
    if synced:
        assert finding.gpus_lost == pytest.approx(7 * 0.5 / 1.5, rel=0.1)
    else:
        assert finding.gpus_lost is None


@pytest.mark.parametrize("steps", [15, 22, 44, 150])
def test_steps_that_only_drift_and_vary_are_no_change(steps: int) -> None:
    """All ranks become a fifth slower bit by bit, with tails, and a long first step."""
    for seed in range(10):
        draw = random.Random(seed)
        times = [
            (1 + 0.2 * step / steps) * (1 + 0.02 * draw.gauss(0, 1) / draw.gammavariate(1.5, 2 / 3))
            for step in range(steps)
        ]
        half = [each + 0.4 * (step >= steps // 2) for step, each in enumerate(times)]
        found = longer(half, 0.06)

        assert longer([3.0, *times[1:]], 0.06) is None
        assert found is None or abs(found.at - steps // 2) <= 2


@pytest.mark.parametrize("synced", [True, False])
def test_healthy_short_trace_tells_nothing(tmp_path: Path, synced: bool) -> None:
    """Ranks that differ by a tenth for good, in 14 to 24 steps; fewer steps are too few."""
    for steps in (14, 18, 24):
        one = judged(tmp_path, lambda rank, step: 0.012 * rank - 0.05, steps=steps, synced=synced)
        assert one.findings == []
    few = judged(tmp_path, lambda rank, step: 0.5 * (rank == 3), steps=7, synced=synced)

    assert (few.not_judgeable[0], few.findings) == ("warming_up", [])
    assert few.confidence is None


def test_single_rank_has_no_peers_but_a_past(tmp_path: Path) -> None:
    one = judged(tmp_path, lambda rank, step: 0.5 * (step >= 11), ranks=1)

    assert list(one.not_judgeable) == ["no_peers"]
    assert [finding.kind for finding in one.findings] == ["change"]
