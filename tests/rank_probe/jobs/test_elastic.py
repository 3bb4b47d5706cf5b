"""Tests of what happens to real jobs: restarts, crashes, groups formed anew, a late exporter."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from exporter.ranks.jobs import node_jobs
from exporter.ranks.store import RankStore
from rank_probe.wire.snapshot import Snapshot
from rankskew.replay.traces import read_traces
from tests.exporter.clock import Clock
from tests.exporter.running import wait_until
from tests.rank_probe.forks import Fork, Zygote
from tests.rank_probe.jobs.elastic_job import BATCH
from tests.rank_probe.jobs.reform_job import GROUPS, LATE_STAGE, late_rank
from tests.rank_probe.jobs.reform_job import STEPS as GROUP_STEPS
from tests.rank_probe.sink import Sink, listening, listening_on_loopback

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[3]
STEPS = 20
JOB = ("rank_probe", "tests/rank_probe/jobs/elastic_job.py")


def test_exporter_that_comes_late_misses_nothing(zygote: Zygote, tmp_path: Path) -> None:
    """Counters are state: the first snapshot that arrives tells of every step before it.

    RANK_PROBE_TRACE writes a file a rank that replay reads, with each step, exporter or not.
    """
    steps, trace = 6 * STEPS, tmp_path / "trace"
    files = [trace / f"traced-0-{rank}.csv" for rank in (0, 1)]
    known = {
        "RANKSKEW_EXPORTER": f"unix:{tmp_path}/s",
        "RANKSKEW_JOB_ID": "traced",
        "RANK_PROBE_TRACE": str(trace),
    }
    with zygote.ranks(tmp_path, *JOB, str(steps), ranks=2, **known) as ranks:
        wait_until(lambda: files[0].exists() and len(files[0].read_text().splitlines()) > 2)
        with listening(tmp_path / "s") as sink:
            assert [rank.wait() for rank in ranks] == [0, 0]
    last = sink.last()

    assert [last[rank]["steps"] for rank in (0, 1)] == [steps] * 2
    assert all(last[rank]["finished"] for rank in last)
    assert [last[rank]["samples"] for rank in (0, 1)] == [steps * BATCH] * 2
    assert sorted(trace.iterdir()) == files
    assert [len(file.read_text().splitlines()) for file in files] == [1 + steps] * 2
    assert read_traces([trace])


def test_two_jobs_on_one_node_are_two_jobs(zygote: Zygote, tmp_path: Path) -> None:
    """Each is counted under its own name, though their ranks have the same numbers."""
    steps = {"first": STEPS, "second": 2 * STEPS}
    with listening(tmp_path / "s") as sink, ExitStack() as jobs:
        ranks: list[Fork] = []
        for name in steps:
            (tmp_path / name).mkdir()
            known = {"RANKSKEW_EXPORTER": sink.endpoint, "RANKSKEW_JOB_ID": name}
            job = zygote.ranks(tmp_path / name, *JOB, str(steps[name]), ranks=1, **known)
            ranks += jobs.enter_context(job)
        assert [rank.wait() for rank in ranks] == [0, 0]
    ended = {each["job_id"]: each["steps"] for each in sink.snapshots if each["finished"]}

    assert ended == steps


def test_container_without_the_socket_uses_tcp_and_a_token(zygote: Zygote, tmp_path: Path) -> None:
    """With RANKSKEW_TOKEN_FILE every push carries the token, and the log does not."""
    token = tmp_path / "token"
    token.write_text("secret-of-the-node\n")
    with listening_on_loopback() as sink:
        sink.token = "secret-of-the-node"
        known = {"RANKSKEW_EXPORTER": sink.endpoint, "RANKSKEW_TOKEN_FILE": str(token)}
        with zygote.ranks(tmp_path, *JOB, str(STEPS), ranks=1, **known) as (rank,):
            assert rank.wait() == 0

    assert sink.last()[0]["steps"] == STEPS
    assert set(sink.authorizations) == {"Bearer secret-of-the-node"}
    assert "secret" not in rank.output.read_text()


def test_rank_is_turned_off_and_on_while_it_trains(zygote: Zygote, tmp_path: Path) -> None:
    """The exporter's answer stops the counters within a push or two, and starts them again."""
    enough = tmp_path / "enough"
    job = (*JOB, str(50 * STEPS), str(enough))
    with (
        listening(tmp_path / "s") as sink,
        zygote.ranks(tmp_path, *job, ranks=1, RANKSKEW_EXPORTER=sink.endpoint) as (rank,),
    ):
        wait_for(sink, lambda last: last["steps"] > 0)
        sink.answer = b'{"level":"off"}'
        stopped = wait_for(sink, lambda last: last["level"] == "off")
        still = wait_for(sink, lambda last: last["sequence"] >= stopped["sequence"] + 2)
        sink.answer = b'{"level":"stages"}'
        wait_for(sink, lambda last: last["steps"] > stopped["steps"])
        enough.touch()
        assert rank.wait() == 0
    last = sink.last()[0]

    assert still["steps"] == stopped["steps"]
    assert stopped["steps"] < last["steps"] < int(enough.read_text())
    assert last["probe_errors"] == 0


def wait_for(sink: Sink, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the *condition* is true of the last snapshot; return it."""
    found: list[dict[str, Any]] = []

    def is_so() -> bool:
        found[:] = [last for last in sink.snapshots[-1:] if condition(last)]
        return bool(found)

    wait_until(is_so)
    return found[0]


NAMES = sorted({name for group in GROUPS for name in group})

Answers = Mapping[tuple[int, str], dict[str, Any]]
Job = tuple[Answers, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def job(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The answers by group and process, and all that was pushed."""
    folder = tmp_path_factory.mktemp("reform")
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with listening(folder / "s") as sink:
        own = {"RANKSKEW_EXPORTER": sink.endpoint, "RANKSKEW_JOB_ID": "j"}
        arguments = ("tests.rank_probe.jobs.reform_job", str(server.port), str(folder))
        forks = [zygote.start(folder / name, *arguments, name, **own) for name in NAMES]
        assert [fork.wait(120) for fork in forks] == [0] * len(forks)
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
    assert verdicts[0]["step"] <= GROUP_STEPS
    assert sum(verdicts[0]["ranks"].values()) == len(GROUPS[group])
    assert verdicts[0]["absent"] == 0


def test_restart_is_the_same_job_with_the_next_attempt(tmp_path: Path) -> None:
    """After a rank died torchrun starts all anew: same job and ranks, counters from zero.

    Another rank is late then, and named.
    """
    launcher = ["torch.distributed.run", "--nproc-per-node", "3", "--max-restarts", "1"]
    # A rendezvous of its own: two jobs may run side by side.
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    job = ["-m", "tests.rank_probe.jobs.reform_job", str(tmp_path)]
    # Gloo would reuse the dead peer's address from the agent's store (torch 2.13).
    own = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with listening(tmp_path / "s") as sink:
        known = own | {"RANKSKEW_EXPORTER": sink.endpoint, "RANKSKEW_JOB_ID": "elastic"}
        ended = subprocess.run(
            [sys.executable, "-m", *launcher, "--monitor-interval", "0.1", *rendezvous, *job],
            cwd=ROOT,
            env=os.environ | known,
            timeout=120,
            capture_output=True,
            text=True,
        )
    assert ended.returncode == 0, ended.stderr[-3000:]
    snapshots, last = sink.snapshots, sink.last()
    assert {snapshot["job_id"] for snapshot in snapshots} == {"elastic"}
    assert {snapshot["attempt"] for snapshot in snapshots} == {0, 1}
    # Nobody of the first attempt ended well, everybody of the second did.
    assert not any(snapshot["finished"] for snapshot in snapshots if snapshot["attempt"] == 0)
    assert sorted(last) == [0, 1, 2]
    for rank in last.values():
        assert (rank["attempt"], rank["finished"]) == (1, True)
        assert (rank["steps"], rank["probe_errors"]) == (GROUP_STEPS, 0)

    verdicts = [json.loads((tmp_path / f"{rank}.json").read_text())["verdict"] for rank in range(3)]
    assert all(verdict == verdicts[0] for verdict in verdicts)
    assert [(late["rank"], late["stage"]) for late in verdicts[0]["late"]] == [(1, LATE_STAGE)]
    assert verdicts[0]["step"] <= GROUP_STEPS
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
            assert snapshot.steps >= before or snapshot.steps <= GROUP_STEPS
            steps[snapshot.rank] = snapshot.steps

    assert shown == [(list(range(len(names))), []) for names in GROUPS]
    assert not any(said["probe_errors"] or said["push_failures"] for said in pushed)
