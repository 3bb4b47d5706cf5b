"""Tests of what happens to real jobs: restarts, crashes, groups formed anew, a late exporter."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demo.train import BATCH
from rankskew.replay.traces import read_traces
from tests.exporter.running import wait_until
from tests.rank_probe.forks import Zygote, serving
from tests.rank_probe.jobs.reform_job import GROUPS, LATE_STAGE, late_rank
from tests.rank_probe.jobs.reform_job import STEPS as GROUP_STEPS
from tests.rank_probe.sink import Sink, listening

pytestmark = pytest.mark.jobs

STEPS = 20


def training(steps: int) -> tuple[str, ...]:
    """Return the unchanged script under the probe, 50 ms a step."""
    return ("rank_probe", "demo/train.py", "--steps", str(steps), "--step-seconds", "0.05")


def test_exporter_that_comes_late_misses_nothing(zygote: Zygote, tmp_path: Path) -> None:
    """Counters are state: the first snapshot that arrives tells of every step before it.

    RANK_PROBE_TRACE writes a file a rank that replay reads, with each step, exporter or not.
    """
    steps, trace = 3 * STEPS, tmp_path / "trace"
    files = [trace / f"traced-0-{rank}.csv" for rank in (0, 1)]
    known = {
        "RANKSKEW_EXPORTER": f"unix:{tmp_path}/s",
        "RANKSKEW_JOB_ID": "traced",
        "RANK_PROBE_TRACE": str(trace),
    }
    with zygote.ranks(tmp_path, *training(steps), ranks=2, **known) as ranks:
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


def test_rank_is_turned_off_and_on_while_it_trains(zygote: Zygote, tmp_path: Path) -> None:
    """The exporter's answer stops the counters within a push or two, and starts them again."""
    with (
        listening(tmp_path / "s") as sink,
        zygote.ranks(tmp_path, *training(50 * STEPS), ranks=1, RANKSKEW_EXPORTER=sink.endpoint),
    ):
        wait_for(sink, lambda last: last["steps"] > 0)
        sink.answer = b'{"level":"off"}'
        stopped = wait_for(sink, lambda last: last["level"] == "off")
        still = wait_for(sink, lambda last: last["sequence"] >= stopped["sequence"] + 2)
        sink.answer = b'{"level":"stages"}'
        again = wait_for(sink, lambda last: last["steps"] > stopped["steps"])

    assert still["steps"] == stopped["steps"]
    # What it trained meanwhile, a push and more, is not made up for.
    assert again["steps"] < stopped["steps"] + 2 * STEPS
    assert again["probe_errors"] == 0


def wait_for(sink: Sink, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the *condition* is true of the last snapshot; return it."""
    found: list[dict[str, Any]] = []

    def is_so() -> bool:
        found[:] = [last for last in sink.snapshots[-1:] if condition(last)]
        return bool(found)

    wait_until(is_so)
    return found[0]


NAMES = sorted({name for group in GROUPS for name in group})


@pytest.fixture(scope="module")
def verdicts(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The verdict that each rank of each group reads."""
    folder = tmp_path_factory.mktemp("reform")
    server = serving()
    with listening(folder / "s") as sink:
        own = {"RANKSKEW_EXPORTER": sink.endpoint, "RANKSKEW_JOB_ID": "j"}
        arguments = ("tests.rank_probe.jobs.reform_job", str(server.port), str(folder))
        forks = [zygote.start(folder / name, *arguments, name, **own) for name in NAMES]
        assert [fork.wait(120) for fork in forks] == [0] * len(forks)
    assert not any(said["probe_errors"] or said["push_failures"] for said in sink.snapshots)
    return [
        [json.loads((folder / f"{group}-{name}.json").read_text()) for name in names]
        for group, names in enumerate(GROUPS)
    ]


def named(verdicts: list[Any], rank: int) -> None:
    """Assert that the *verdicts* of all ranks of a group are one, which names *rank* in time."""
    assert all(verdict == verdicts[0] for verdict in verdicts)
    assert [(late["rank"], late["stage"]) for late in verdicts[0]["late"]] == [(rank, LATE_STAGE)]
    assert verdicts[0]["step"] <= GROUP_STEPS
    assert sum(verdicts[0]["ranks"].values()) == len(verdicts)
    assert verdicts[0]["absent"] == 0


@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_late_rank_of_each_group_is_named_within_thirty_steps(
    verdicts: list[list[Any]], group: int
) -> None:
    """Every rank reads the same verdict on the group that it is in, and nobody else is in it."""
    named(verdicts[group], late_rank(group))


def test_restart_is_the_same_job_with_the_next_attempt(zygote: Zygote, tmp_path: Path) -> None:
    """After a rank died torchrun starts all anew: same job and ranks, counters from zero.

    Another rank is late then, and named.
    """
    with listening(tmp_path / "s") as sink:
        known = {"RANKSKEW_EXPORTER": sink.endpoint, "RANKSKEW_JOB_ID": "elastic"}
        # Gloo would reuse the dead peer's address from the agent's store (torch 2.13).
        known["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        job = ("tests.rank_probe.jobs.reform_job", str(tmp_path))
        agent = zygote.start(tmp_path / "output", *job, **known)
        assert agent.wait(120) == 0, agent.output.read_text()[-3000:]
    snapshots, last = sink.snapshots, sink.last()
    assert {snapshot["job_id"] for snapshot in snapshots} == {"elastic"}
    assert {snapshot["attempt"] for snapshot in snapshots} == {0, 1}
    # Nobody of the first attempt ended well, everybody of the second did.
    assert not any(snapshot["finished"] for snapshot in snapshots if snapshot["attempt"] == 0)
    assert sorted(last) == [0, 1]
    for rank in last.values():
        assert (rank["attempt"], rank["finished"]) == (1, True)
        assert (rank["steps"], rank["probe_errors"]) == (GROUP_STEPS, 0)
    named([json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)], rank=1)
