"""Tests of real jobs that are turned off, restarted or regrouped.

Run with FOLDER, this module is torchrun's agent of two forked ranks. The last one dies in the first
attempt; in the second attempt each rank writes its verdict to FOLDER/<rank>.json.

Run with PORT FOLDER NAME, it is one process of GROUPS; its place in a group is its rank there. All
meet at the store at PORT. One rank of each group is late. After STEPS steps the process writes the
verdict to FOLDER/<group>-<NAME>.json. Only the processes of the last group report a clean end.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from devstack.process import wait_for
from rank_probe import api, step
from rank_probe.api import stage
from rank_probe.join import store
from rank_probe.probe import Probe
from tests.rank_probe.forks import Zygote, serving
from tests.rank_probe.sink import Sink, listening

pytestmark = pytest.mark.jobs


def test_rank_is_turned_off_and_on_while_it_trains(zygote: Zygote, tmp_path: Path) -> None:
    """The exporter's answer stops the counters within a push or two, and starts them again."""
    job = ("rank_probe", "demo/train.py", "--steps", "1000", "--step-seconds", "0.05")
    with (
        listening(tmp_path / "s") as sink,
        zygote.ranks(tmp_path, *job, ranks=1, RANKSKEW_EXPORTER=sink.endpoint),
    ):
        told(sink, lambda last: last["steps"] > 0)
        sink.answer = b'{"level":"off"}'
        stopped = told(sink, lambda last: last["level"] == "off")
        still = told(sink, lambda last: last["sequence"] >= stopped["sequence"] + 2)
        sink.answer = b'{"level":"stages"}'
        again = told(sink, lambda last: last["steps"] > stopped["steps"])

    assert still["steps"] == stopped["steps"]
    # Steps trained while the probe was off, for a push or longer, are not counted later.
    timed = again["heartbeat_timestamp_seconds"] - still["heartbeat_timestamp_seconds"]
    assert again["steps"] - stopped["steps"] <= timed / 0.05 + 2
    assert again["probe_errors"] == 0


def told(sink: Sink, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the *condition* is true of the last snapshot; return it."""
    found = wait_for(lambda: next(filter(condition, sink.snapshots[-1:]), None), 60)
    assert found
    return found


# The same ranks again, more of them, rank 0 gone, another rank 0, a rank 0 that never stepped: on
# a new store and on the old one.
GROUPS: Final = ("ABC", "ABC", "ABCD", "BCD", "DBC", "EBC", "FCEB")
STEPS: Final = 30
WORK: Final = {"data": 0.005, "forward": 0.005, "backward": 0.005}
LATE_STAGE: Final = "backward"
DELAY: Final = 0.03
PERIOD: Final = 0.1
PATIENCE: Final = 5.0


def late_rank(group: int) -> int:
    """Return which rank of *group* is late; never the one of the group before."""
    return (2 * group + 1) % len(GROUPS[group])


def form(meeting: TCPStore, group: int, name: str) -> None:
    """Form *group*: on the old store under the same name, every other time on a new store."""
    rank, ranks = GROUPS[group].index(name), len(GROUPS[group])
    if group % 2:
        if rank == 0:
            port = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port
            meeting.set(f"port/{group}", str(port))
        address = f"tcp://127.0.0.1:{meeting.get(f'port/{group}').decode()}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
        return
    if rank == 0:
        # Gloo would read the addresses of the group before.
        for key in meeting.list_keys():
            if "job" in key and "rankskew" not in key:
                meeting.delete_key(key)
        meeting.set(f"clean/{group}", "")
    meeting.wait([f"clean/{group}"])
    store = PrefixStore("job", TCPStore("127.0.0.1", meeting.port, wait_for_workers=False))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)


def train(late: int) -> None:
    """Run the steps, each of which ends in an all-reduce; rank *late* is slow in LATE_STAGE."""
    gradient = torch.ones(4)
    is_late = dist.get_rank() == late
    for _ in range(STEPS):
        for name, seconds in WORK.items():
            with stage(name):
                time.sleep(seconds + DELAY * (is_late and name == LATE_STAGE))
        dist.all_reduce(gradient)
        step()


def answer(probe: Probe, path: Path) -> None:
    """Wait until every rank has the last verdict, then write it to *path*."""
    until = time.monotonic() + PATIENCE
    join = probe._parts.join
    while time.monotonic() < until:
        if (verdict := join.verdict) is not None and verdict["reason"] is None:
            break
        time.sleep(PERIOD / 4)
    dist.barrier()
    time.sleep(5 * PERIOD)
    path.write_text(json.dumps(join.verdict))


def be_restarted(answers: Path) -> None:
    """Start two ranks as torchrun does, and once more when one dies."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="elastic",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=1,
        start_method="fork",
    )
    elastic_launch(config, be_replaced)(answers)


def be_replaced(answers: Path) -> None:
    """Train; in the first attempt until the last rank dies."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    store.PERIODS = ((ranks, PERIOD),)  # short enough for a test
    api.start()
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    train(late=0 if is_first else 1)
    if is_first and rank == ranks - 1:
        os._exit(17)
    probe = api._probe
    assert probe is not None
    if not is_first:
        answer(probe, answers / f"{rank}.json")
    dist.barrier()
    api.finish()


def take_part(port: int, answers: Path, name: str) -> None:
    """Take part in each group that has this process."""
    store.PERIODS = ((max(map(len, GROUPS)), PERIOD),)  # short enough for a test
    meeting = TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=timedelta(seconds=120))
    api.start()
    probe = api._probe
    assert probe is not None
    mine = [group for group, names in enumerate(GROUPS) if name in names]
    for group in mine:
        if group:  # Not before all have left the group before.
            meeting.wait([f"left/{group - 1}/{other}" for other in GROUPS[group - 1]])
        form(meeting, group, name)
        train(late_rank(group))
        answer(probe, answers / f"{group}-{name}.json")
        dist.barrier()
        dist.destroy_process_group()
        meeting.set(f"left/{group}/{name}", "")
    if name in GROUPS[-1]:
        api.finish()


@pytest.fixture(scope="module")
def verdicts(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The verdict that each rank of each group reads."""
    folder, names = tmp_path_factory.mktemp("reform"), sorted(set("".join(GROUPS)))
    server = serving()
    with listening(folder / "s") as sink:
        own = {"RANKSKEW_EXPORTER": sink.endpoint, "RANKSKEW_JOB_ID": "j"}
        arguments = ("tests.rank_probe.jobs.test_elastic", str(server.port), str(folder))
        forks = [zygote.start(folder / name, *arguments, name, **own) for name in names]
        assert [fork.wait(120) for fork in forks] == [0] * len(forks)
    # A push that a busy machine holds up is given up after half a second, and costs nothing.
    assert [said for said in sink.snapshots if said["probe_errors"]] == []
    return [
        [json.loads((folder / f"{group}-{name}.json").read_text()) for name in members]
        for group, members in enumerate(GROUPS)
    ]


def named(verdicts: list[Any], rank: int) -> None:
    """Assert that all ranks of a group read one verdict, which names *rank* within STEPS."""
    assert all(verdict == verdicts[0] for verdict in verdicts)
    assert [(late["rank"], late["stage"]) for late in verdicts[0]["late"]] == [(rank, LATE_STAGE)]
    assert verdicts[0]["step"] <= STEPS
    assert sum(verdicts[0]["ranks"].values()) == len(verdicts)
    assert verdicts[0]["absent"] == 0


@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_late_rank_of_each_group_is_named_within_thirty_steps(
    verdicts: list[list[Any]], group: int
) -> None:
    """Every rank of a group reads the same verdict, which covers that group's ranks only."""
    named(verdicts[group], late_rank(group))


def test_restart_is_the_same_job_with_the_next_attempt(zygote: Zygote, tmp_path: Path) -> None:
    """When torchrun restarts the ranks, job and ranks stay the same and counters start at zero.

    The rank that is late in the second attempt is named.
    """
    with listening(tmp_path / "s") as sink:
        known = {"RANKSKEW_EXPORTER": sink.endpoint, "RANKSKEW_JOB_ID": "elastic"}
        # Gloo would reuse the dead peer's address from the agent's store (torch 2.13).
        known["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        job = ("tests.rank_probe.jobs.test_elastic", str(tmp_path))
        agent = zygote.start(tmp_path / "output", *job, **known)
        assert agent.wait(120) == 0, agent.output.read_text()[-3000:]
    snapshots, last = sink.snapshots, sink.last()
    assert {snapshot["job_id"] for snapshot in snapshots} == {"elastic"}
    assert {snapshot["attempt"] for snapshot in snapshots} == {0, 1}
    # No rank of the first attempt ended cleanly; every rank of the second did.
    assert not any(snapshot["finished"] for snapshot in snapshots if snapshot["attempt"] == 0)
    assert sorted(last) == [0, 1]
    for rank in last.values():
        assert (rank["attempt"], rank["finished"]) == (1, True)
        assert (rank["steps"], rank["probe_errors"]) == (STEPS, 0)
    named([json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)], rank=1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) == 2:
        be_restarted(Path(sys.argv[1]))
    else:
        take_part(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    os._exit(0)  # gloo's threads may outlive its groups: pytorch/pytorch#179291
