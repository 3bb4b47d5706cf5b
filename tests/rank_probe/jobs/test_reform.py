"""A job that forms its process group anew, as elastic trainings do, is compared each time."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from exporter.ranks.jobs import node_jobs
from exporter.ranks.store import RankStore
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.clock import Clock
from tests.rank_probe.jobs.reform_job import GROUPS, LATE_STAGE, STEPS, late_rank
from tests.rank_probe.sink import listening

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[3]
NAMES = sorted({name for group in GROUPS for name in group})

Answers = Mapping[tuple[int, str], dict[str, Any]]
Job = tuple[Answers, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The answers by group and process, and all that was pushed."""
    folder = tmp_path_factory.mktemp("reform")
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with listening(folder / "s") as sink:
        own = {"OMP_NUM_THREADS": "1", "RANKSKEW_EXPORTER": sink.endpoint, "RANKSKEW_JOB_ID": "j"}
        script = [sys.executable, "-m", "tests.rank_probe.jobs.reform_job"]
        processes = [
            subprocess.Popen(
                [*script, str(server.port), str(folder), name], cwd=ROOT, env=os.environ | own
            )
            for name in NAMES
        ]
        try:
            assert [process.wait(120) for process in processes] == [0] * len(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    answers = {
        (group, name): json.loads((folder / f"{group}-{name}.json").read_text())
        for group, names in enumerate(GROUPS)
        for name in names
    }
    return answers, sink.snapshots


@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_late_rank_of_each_group_is_named_within_thirty_steps(job: Job, group: int) -> None:
    """Every rank reads the same verdict on the group that it is in, and nobody else is in it."""
    answers, _ = job
    verdicts = [answers[group, name]["verdict"] for name in GROUPS[group]]

    assert verdicts[0] is not None
    assert all(verdict == verdicts[0] for verdict in verdicts)
    assert [(late["rank"], late["stage"]) for late in verdicts[0]["late"]] == [
        (late_rank(group), LATE_STAGE)
    ]
    assert verdicts[0]["step"] <= STEPS
    assert sum(verdicts[0]["ranks"].values()) == len(GROUPS[group])
    assert verdicts[0]["absent"] == 0


def test_late_rank_is_named_after_another_was_replaced(tmp_path: Path) -> None:
    """torchrun starts all ranks anew after the last one died; the late one is another then."""
    launcher = ["torch.distributed.run", "--nproc-per-node", "3", "--max-restarts", "1"]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    job = ["-m", "tests.rank_probe.jobs.replaced_job", str(tmp_path)]
    own = {"OMP_NUM_THREADS": "1", "RANKSKEW_EXPORTER": f"unix:{tmp_path}/nobody"}
    # Gloo would reuse the dead peer's address from the agent's store (torch 2.13).
    own["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    ended = subprocess.run(
        [sys.executable, "-m", *launcher, "--monitor-interval", "0.1", *rendezvous, *job],
        cwd=ROOT,
        env=os.environ | own,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    verdicts = [json.loads((tmp_path / f"{rank}.json").read_text())["verdict"] for rank in range(3)]

    assert all(verdict == verdicts[0] for verdict in verdicts)
    assert [(late["rank"], late["stage"]) for late in verdicts[0]["late"]] == [(1, LATE_STAGE)]
    assert verdicts[0]["step"] <= STEPS
    assert (verdicts[0]["ranks"], verdicts[0]["absent"]) == ({"all": 3}, 0)


def test_exporter_shows_the_ranks_of_the_group_and_no_other(job: Job) -> None:
    """Whoever left did so without a word, and most of the others have another number each time.

    The series of a rank fall only to what the process has counted under its number.
    """
    answers, pushed = job
    ends = [max(answers[group, name]["at"] for name in names) for group, names in enumerate(GROUPS)]
    clock = Clock()
    store = RankStore(clock=clock)
    steps: dict[int, int] = {}
    shown: list[tuple[list[int], list[int]]] = []
    for said in [*pushed, {"heartbeat_timestamp_seconds": math.inf}]:
        while len(shown) < len(ends) and said["heartbeat_timestamp_seconds"] > ends[len(shown)]:
            clock.seconds = ends[len(shown)]
            (here,) = node_jobs(store.ranks(), clock.seconds)
            kinds = (here.beating, here.silent)
            shown.append(tuple([rank.snapshot.rank for rank in kind] for kind in kinds))  # type: ignore[arg-type]
        if len(shown) == len(ends):
            break
        clock.seconds = said["heartbeat_timestamp_seconds"]
        if store.put(snapshot := Snapshot(**said)):
            before = steps.get(snapshot.rank, 0)
            assert snapshot.steps >= before or snapshot.steps <= STEPS
            steps[snapshot.rank] = snapshot.steps

    assert shown == [(list(range(len(names))), []) for names in GROUPS]
    assert not any(said["probe_errors"] or said["push_failures"] for said in pushed)
