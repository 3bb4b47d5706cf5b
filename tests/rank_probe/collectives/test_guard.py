"""Nothing is measured beside a live job, unless that is asked for."""

from pathlib import Path
from typing import Any

import pytest

from rank_probe.collectives import guard
from rank_probe.collectives.guard import keep_away
from rank_probe.collectives.world import CannotMeasure, PlaceInWorld, Watchdog, World
from rank_probe.wire.snapshot import DRY_RUN_PATH
from tests.exporter.running import running_exporter
from tests.exporter.snapshots import snapshot
from tests.rank_probe.answering import answering
from tests.rank_probe.test_check import judged

JOB = {"job_id": "llama", "ranks": 2, "gpu_uuids": ["GPU-a"]}


class Alone(World):
    """A rank that is all of its world: what it tells is what all tell."""

    def exchange(self, mine: Any) -> list[Any]:
        return [mine]


def world(backend: str = "gloo", local_rank: int = 0) -> World:
    return Alone(PlaceInWorld(0, 1, local_rank), backend, None, Watchdog(0, 60.0), hosts=("n0",))


def look(
    patch: pytest.MonkeyPatch, running: list[Any] | None, beside: bool = False, gpu: str | None = ""
) -> list[str]:
    """Return the notes beside an exporter that says what is *running*; with *gpu* on NCCL."""
    patch.setattr(guard, "_my_gpu", lambda local_rank: gpu)
    said = {} if running is None else {"running": running}
    with answering({DRY_RUN_PATH: (200, judged(**said))}) as endpoint:
        patch.setenv("RANKSKEW_EXPORTER", endpoint)
        return keep_away(world("nccl" if gpu else "gloo"), beside)


def test_live_job_on_the_node_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence says who runs where, and what to do."""
    with pytest.raises(CannotMeasure) as refusal:
        look(monkeypatch, [JOB, JOB | {"job_id": "", "ranks": 1}])

    assert str(refusal.value) == (
        "n0: 2 ranks of job 'llama' run; n0: 1 rank of another user's job runs: wait until it has "
        "ended, or measure beside it with --beside-a-job"
    )


def test_beside_a_job_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for it is measured, and told that the figures are shared."""
    assert look(monkeypatch, [JOB], beside=True) == [
        "measured beside a job: n0: 2 ranks of job 'llama' run"
    ]


def test_job_on_other_gpus_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NCCL only the own GPU counts, and a rank whose GPU nobody knows."""
    assert look(monkeypatch, [JOB], gpu="GPU-b") == []
    with pytest.raises(CannotMeasure, match="job 'llama'"):
        look(monkeypatch, [JOB], gpu="GPU-a")
    with pytest.raises(CannotMeasure, match="job 'llama'"):
        look(monkeypatch, [JOB | {"gpu_uuids": []}], gpu="GPU-b")


def test_what_cannot_be_seen_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an exporter, or with an old one, it is measured, and said."""
    assert look(monkeypatch, None)[0].endswith("is too old to say whether a job runs")
    monkeypatch.setenv("RANKSKEW_EXPORTER", "unix:/absent/e.sock")
    (note,) = keep_away(world(), False)
    assert note.startswith("n0: no exporter says whether a job runs: ")


def test_one_rank_of_a_node_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GPUs the answer is the same for all."""
    monkeypatch.setenv("RANKSKEW_EXPORTER", "unix:/absent/e.sock")

    assert keep_away(world(local_rank=1), False) == []


def test_real_exporter_tells_of_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that pushes stands in the way, and one that has finished does not."""
    with running_exporter(tmp_path / "e.sock") as exporter:
        monkeypatch.setenv("RANKSKEW_EXPORTER", f"unix:{exporter.socket_path}")
        assert keep_away(world(), False) == []
        exporter.push(snapshot().to_json())
        with pytest.raises(CannotMeasure, match=r"^n0: 1 rank of job 'llama' runs: wait until"):
            keep_away(world(), False)
        exporter.push(snapshot(sequence=2, finished=True).to_json())
        assert keep_away(world(), False) == []


def test_sentence_about_many_nodes_stands_once() -> None:
    """With the first four of them."""
    notes = [["no exporter"]] * 6

    assert guard._once(notes, [f"n{node}" for node in range(6)]) == [
        "n0, n1, n2, n3 and 2 more: no exporter"
    ]
