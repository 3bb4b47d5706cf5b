"""Tests of what happens to real jobs: restarts, crashes, an exporter that is not there yet."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rankskew.replay.traces import read_traces
from tests.rank_probe.jobs.elastic_job import BATCH, STEP_SECONDS
from tests.rank_probe.sink import Sink, listening, listening_on_loopback

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[3]
STEPS = 20


@contextmanager
def training(
    *arguments: str, ranks: int = 2, options: Sequence[str] = (), **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """Run the job under torchrun and the probe while the block runs; end it for sure."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *options]
    # A rendezvous of its own: two jobs may run side by side.
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    job = ["-m", "rank_probe", "tests/rank_probe/jobs/elastic_job.py", *arguments]
    process = subprocess.Popen(
        [sys.executable, *launcher, *rendezvous, *job],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the job; return its exit status and what it said."""
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


@pytest.mark.parametrize("failure", ["raise", pytest.param("exit", marks=pytest.mark.nightly)])
def test_restart_is_the_same_job_with_the_next_attempt(tmp_path: Path, failure: str) -> None:
    """After a crash torchrun starts all ranks anew: same job and ranks, counters from zero."""
    with listening(tmp_path / "s") as sink:
        with training(
            str(STEPS),
            failure,
            options=["--max-restarts", "1", "--monitor-interval", "0.1"],
            RANKSKEW_EXPORTER=sink.endpoint,
            RANKSKEW_JOB_ID="elastic",
            # Gloo would reuse the dead peer's address from the agent's store (torch 2.13).
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        ) as process:
            status, output = end_of(process)
        snapshots = sink.snapshots

    assert status == 0, output[-3000:]
    assert {snapshot["job_id"] for snapshot in snapshots} == {"elastic"}
    assert {snapshot["attempt"] for snapshot in snapshots} == {0, 1}
    # Nobody of the first attempt ended well, everybody of the second did.
    assert not any(snapshot["finished"] for snapshot in snapshots if snapshot["attempt"] == 0)
    last = sink.last()
    assert {rank: (last[rank]["attempt"], last[rank]["finished"]) for rank in last} == {
        0: (1, True),
        1: (1, True),
    }
    assert [last[rank]["steps"] for rank in (0, 1)] == [STEPS, STEPS]
    assert all(last[rank]["probe_errors"] == 0 for rank in last)


def test_job_that_fails_for_good_is_not_finished(tmp_path: Path) -> None:
    """The exit status is the job's own, and no rank claims a clean end."""
    with (
        listening(tmp_path / "s") as sink,
        training(str(STEPS), "raise", RANKSKEW_EXPORTER=sink.endpoint) as process,
    ):
        status, output = end_of(process)
    last = sink.last()

    assert status == 1
    assert "theirs" in output
    assert not any(rank["finished"] for rank in last.values())


def test_exporter_that_comes_late_misses_nothing(tmp_path: Path) -> None:
    """Counters are state: the first snapshot that arrives tells of every step before it."""
    with training(str(3 * STEPS), RANKSKEW_EXPORTER=f"unix:{tmp_path}/s") as process:
        time.sleep(3 * STEPS * STEP_SECONDS / 2)
        with listening(tmp_path / "s") as sink:
            status, output = end_of(process)
    last = sink.last()

    assert status == 0, output[-3000:]
    assert [last[rank]["steps"] for rank in (0, 1)] == [3 * STEPS] * 2
    assert all(last[rank]["finished"] for rank in last)
    assert [last[rank]["samples"] for rank in (0, 1)] == [3 * STEPS * BATCH] * 2


def test_two_jobs_on_one_node_are_two_jobs(tmp_path: Path) -> None:
    """Each is counted under its own name, though their ranks have the same numbers."""
    with listening(tmp_path / "s") as sink, ExitStack() as both:
        jobs = {
            name: both.enter_context(
                training(str(steps), ranks=1, RANKSKEW_EXPORTER=sink.endpoint, RANKSKEW_JOB_ID=name)
            )
            for name, steps in (("first", STEPS), ("second", 2 * STEPS))
        }
        assert [end_of(process)[0] for process in jobs.values()] == [0, 0]
    ended = {s["job_id"]: s["steps"] for s in sink.snapshots if s["finished"]}

    assert ended == {"first": STEPS, "second": 2 * STEPS}


def test_container_without_the_socket_uses_tcp_and_a_token(tmp_path: Path) -> None:
    """With RANKSKEW_TOKEN_FILE every push carries the token, and the log does not."""
    token = tmp_path / "token"
    token.write_text("secret-of-the-node\n")
    with listening_on_loopback() as sink:
        sink.token = "secret-of-the-node"
        with training(
            str(STEPS),
            ranks=1,
            RANKSKEW_EXPORTER=sink.endpoint,
            RANKSKEW_TOKEN_FILE=str(token),
        ) as process:
            status, output = end_of(process)

    assert status == 0
    assert sink.last()[0]["steps"] == STEPS
    assert set(sink.authorizations) == {"Bearer secret-of-the-node"}
    assert "secret" not in output


def test_rank_is_turned_off_and_on_while_it_trains(tmp_path: Path) -> None:
    """The exporter's answer stops the counters within a push or two, and starts them again."""
    enough = tmp_path / "enough"
    with (
        listening(tmp_path / "s") as sink,
        training(str(50 * STEPS), str(enough), ranks=1, RANKSKEW_EXPORTER=sink.endpoint) as process,
    ):
        wait_for(sink, lambda last: last["steps"] > 0)
        sink.answer = b'{"level":"off"}'
        stopped = wait_for(sink, lambda last: last["level"] == "off")
        still = wait_for(sink, lambda last: last["sequence"] >= stopped["sequence"] + 2)
        sink.answer = b'{"level":"stages"}'
        wait_for(sink, lambda last: last["steps"] > stopped["steps"])
        enough.touch()
        status, output = end_of(process)
    last = sink.last()[0]

    assert status == 0, output[-3000:]
    assert still["steps"] == stopped["steps"]
    assert stopped["steps"] < last["steps"] < int(enough.read_text())
    assert last["probe_errors"] == 0


def wait_for(sink: Sink, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the *condition* is true of the last snapshot; return it."""
    until = time.monotonic() + 60
    while not (found := [last for last in sink.snapshots[-1:] if condition(last)]):
        assert time.monotonic() < until, f"waited in vain, up to {sink.snapshots[-1:]}"
        time.sleep(0.02)
    return found[0]


def test_trace_holds_every_step_of_every_rank(tmp_path: Path) -> None:
    """RANK_PROBE_TRACE writes a file a rank that replay reads, without an exporter too."""
    with training(
        str(STEPS),
        RANKSKEW_EXPORTER=f"unix:{tmp_path}/nobody",
        RANKSKEW_JOB_ID="traced",
        RANK_PROBE_TRACE=str(tmp_path / "trace"),
    ) as process:
        assert end_of(process)[0] == 0
    files = sorted((tmp_path / "trace").iterdir())

    assert [file.name for file in files] == ["traced-0-0.csv", "traced-0-1.csv"]
    for file in files:
        assert len(file.read_text().splitlines()) == 1 + STEPS
    assert read_traces([tmp_path / "trace"])
