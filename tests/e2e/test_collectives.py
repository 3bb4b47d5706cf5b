"""`rank-probe bench-collectives` with four real ranks: a slow link, and a rank that dies."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devstack.parts import ROOT
from devstack.process import free_port
from tests.e2e.network import Network, why_not

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

RANKS = 4
MEGABITS = 200
ENDED_SECONDS = 120
# On a busy machine a step may take long; a lost rank must not take half as long.
TIMEOUT_SECONDS = 60


def measured(options: list[str]) -> dict[str, Any]:
    """Return the JSON document about a network whose link between ranks 1 and 3 is limited."""
    with Network(RANKS) as network:
        network.limit(1, [3], MEGABITS)
        network.limit(3, [1], MEGABITS)
        command = [sys.executable, "-m", "rank_probe", "bench-collectives", "--backend", "gloo"]
        own = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        ranks = [
            subprocess.Popen(
                network.command(rank, [*command, "--json", *options]),
                env=own | network.environment(rank),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        try:
            said = [rank.communicate(timeout=ENDED_SECONDS) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
    assert said[0][0], "".join(errors for _, errors in said)
    document: dict[str, Any] = json.loads(said[0][0])
    return document


@pytest.mark.skipif(why_not() is not None, reason=f"cannot make a network: {why_not()}")
def test_slow_link_is_named(tmp_path: Path) -> None:
    """Between network namespaces, one link of which tc has limited; on every output."""
    textfile = tmp_path / "links.prom"
    outputs = ["--textfile", str(textfile)]
    document = measured(["--duration", "3s", "--max-mib", "8", *outputs])

    named = [(one["kind"], one["ranks"]) for one in document["named"]]
    assert named == [("link", [1, 3])], document["verdict"]
    assert (document["slow"], document["backend"], document["ranks"]) == (True, "gloo", RANKS)
    assert document["hosts"] == ["node0", "node1", "node2", "node3"]
    assert {pair["scope"] for pair in document["pairs"]} == {"inter-node"}
    assert {one["collective"] for one in document["collectives"]} == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
    }
    assert 'rankskew_collective_slow_info{kind="link",ranks="1,3"' in textfile.read_text()


def start(rank: int, port: int) -> subprocess.Popen[str]:
    launcher = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_PORT": port}
    own: dict[str, Any] = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": 1} | launcher
    command = [sys.executable, "-m", "rank_probe", "bench-collectives", "--duration", "10m"]
    return subprocess.Popen(
        [*command, "--timeout", f"{TIMEOUT_SECONDS}s"],
        env=os.environ | {name: str(value) for name, value in own.items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_rank_that_dies_ends_all_with_a_sentence() -> None:
    """The others do not wait for it, and say why: one of them, while the store still answers."""
    port = free_port()
    ranks = [start(rank, port) for rank in range(RANKS)]
    try:
        assert ranks[0].stderr is not None
        # All have met by then.
        assert "rank-probe: 4 ranks on 1 node measure with gloo" in ranks[0].stderr.readline()
        ranks[2].send_signal(signal.SIGKILL)
        said = [rank.communicate(timeout=TIMEOUT_SECONDS / 2) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()

    sentences = [line for _, errors in said for line in errors.splitlines()]
    assert [rank.returncode for rank in ranks] == [2, 2, -signal.SIGKILL, 2]
    assert 1 <= len(sentences) < RANKS, sentences
    assert all("a rank has ended, a link is down, or" in sentence for sentence in sentences)
    assert [output for output, _ in said] == [""] * RANKS
