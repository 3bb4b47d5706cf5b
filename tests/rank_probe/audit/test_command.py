"""What `rank-probe audit` prints, the status that gates a job, and how its ranks meet."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rank_probe.audit import command
from rank_probe.audit.exchange import Exchange, NoAnswer, why_not
from rank_probe.version import __version__
from tests import nvmlstub
from tests.e2e.audit_launch import FILES, NODES
from tests.rank_probe.audit.healthy import facts

NODE = NODES[0]
SLOW_PORT = {"sys/class/infiniband/mlx5_1/ports/1/rate": "100 Gb/sec (1X NDR)"}
INTERFACE_DOWN = {"sys/class/net/eth0/operstate": "down"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is no rank."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "CUDA_VISIBLE_DEVICES", "NCCL_IB_HCA"):
        monkeypatch.delenv(name, raising=False)


def paths(folder: Path, **files: str) -> list[str]:
    """Write a machine without trouble, but for *files*; return the options that name it."""
    for name, text in {**FILES, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(node=NODE))
    return ["--path.procfs", f"{folder}/proc", "--path.sysfs", f"{folder}/sys"]


def test_node_without_trouble_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each check, and status 0."""
    status = command.run(paths(tmp_path))
    lines = capsys.readouterr().out.splitlines()

    assert status == 0
    assert lines[0] == f"audit: node {NODE}, for 1 rank, rankskew {__version__}"
    assert "OK           infiniband: 4 ports are active and equally fast" in lines
    assert lines[-1].startswith("ok: of 12 checks 0 failed, 0 warned, ")


def test_what_fails_comes_first_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason in one line, what to do in the next, and status 1."""
    status = command.run(paths(tmp_path, **INTERFACE_DOWN))
    lines = capsys.readouterr().out.splitlines()

    assert status == 1
    assert lines[1] == (
        f"FAIL         socket_interface: eth0 of {NODE} is down (chosen by the default route)"
    )
    assert lines[2].startswith("             do: ip link set eth0 up, or choose another with ")
    assert lines[-1].startswith("problem: of 12 checks 1 failed, 0 warned, ")


def test_strict_lets_a_warning_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A warning alone does not close a gate."""
    options = paths(tmp_path, **SLOW_PORT)

    assert (command.run(options), command.run([*options, "--strict"])) == (0, 1)
    assert "\nWARN         infiniband: slower than most" in f"\n{capsys.readouterr().out}"


def test_json_has_what_the_lines_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts get one document, of which docs/audit.md has every field and every check."""
    page = (Path(__file__).parents[3] / "docs/audit.md").read_text()
    command.run([*paths(tmp_path, **INTERFACE_DOWN), "--json"])
    said = json.loads(capsys.readouterr().out)
    check = said["checks"][0]

    assert (said["ok"], said["ranks"], said["nodes"]) == (False, 0, [NODE])
    assert (check["check"], check["status"]) == ("socket_interface", "fail")
    assert check["findings"][0]["advice"].startswith("ip link set eth0 up")
    names = [*said, *check, *check["findings"][0], *(one["check"] for one in said["checks"])]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_driver_that_hangs_ends_the_audit(library: Path, tmp_path: Path) -> None:
    """A call into NVML that never returns costs the timeout and no more."""
    (tmp_path / "scenario").write_text("nvmlInitWithFlags * hang\n")
    done = subprocess.run(
        [sys.executable, "-m", "rank_probe", "audit", "--timeout", "1s"],
        env=os.environ | nvmlstub.environment(library, 8, tmp_path / "scenario"),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "rank-probe: the audit did not end within 1 s: it was reading this node, where a call into "
        "the driver may hang: look at dmesg\n"
    )


WORLD = 3
# Longer than any of these tests may take; what waits on purpose waits for less.
PATIENCE_SECONDS = 30.0


@pytest.fixture
def meet() -> Callable[..., Exchange]:
    """Returns a rank's exchange, as srun or mpirun would have it: rank 0 serves the store."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return lambda rank, seconds=PATIENCE_SECONDS: Exchange(rank, WORLD, environment, seconds)


@pytest.mark.parametrize("silent", [None, 1], ids=["all", "one silent"])
def test_everybody_hears_what_rank_0_decides(
    meet: Callable[..., Exchange], silent: int | None
) -> None:
    """Rank 0 has the facts of all who post, and waits for no other longer than it is told."""

    def other(rank: int) -> int:
        exchange = meet(rank)
        exchange.post(facts(rank))
        return exchange.hear()

    ranks = [rank for rank in range(1, WORLD) if rank != silent]
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(other, rank) for rank in ranks]
        first = meet(0)
        first.post(facts(0))
        first._store.wait([f"facts/{rank}" for rank in ranks])
        gathered, missing = first.gather(PATIENCE_SECONDS if silent is None else 0.2)
        first.tell(1, others=len(ranks))

        assert gathered == [facts(rank) for rank in (0, *ranks)]
        assert missing == (() if silent is None else (silent,))
        assert [one.result() for one in others] == [1] * len(ranks)


def test_what_cannot_be_read_is_missing(meet: Callable[..., Exchange]) -> None:
    """A rank of another release is named, and ends nobody's audit."""
    first = meet(0)
    first.post(facts(0))
    for rank in (1, 2):
        first._store.set(f"facts/{rank}", b"of another release")
        first._store.add("posted", 1)

    assert first.gather(PATIENCE_SECONDS) == ([facts(0)], (1, 2))


def test_rank_0_that_does_not_answer_is_one_sentence(meet: Callable[..., Exchange]) -> None:
    """It names the address, without torch's frames; nobody need serve the store, either."""
    with pytest.raises(NoAnswer, match=r"^nobody answers at 127\.0\.0\.1:\d+: "):
        meet(1, 0.2)
    with pytest.raises(NoAnswer, match=r"^the store at 127\.0\.0\.1:\d+ does not answer: .*$"):
        meet(0, 0.2).hear()


def test_launcher_must_say_where_ranks_meet() -> None:
    """Otherwise each rank looks at itself only, and says why."""
    for environment, says in (
        ({}, "MASTER_ADDR is not set"),
        ({"MASTER_ADDR": "a"}, "MASTER_PORT is not set"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "http"}, "MASTER_PORT=http is not a number"),
    ):
        assert why_not(environment).startswith(says)
    assert why_not({"MASTER_ADDR": "a", "MASTER_PORT": "29500"}) == ""
