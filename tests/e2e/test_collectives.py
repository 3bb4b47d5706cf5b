"""`rank-probe bench-collectives` with four real ranks: a slow link, and a rank that dies."""

import json
import os
import signal
from pathlib import Path

import pytest

from devstack.process import wait_for
from tests.e2e.network import Network, why_not
from tests.rank_probe.forks import Zygote

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

RANKS = 4
MEGABITS = 200
# On a busy machine a step may take long; a lost rank must not take half as long.
TIMEOUT_SECONDS = 60
COMMAND = ("rank_probe", "bench-collectives", "--backend", "gloo")


@pytest.mark.skipif(why_not() is not None, reason=f"cannot make a network: {why_not()}")
def test_slow_link_is_named(zygote: Zygote, tmp_path: Path) -> None:
    """Between network namespaces, the link of ranks 1 and 3 limited by tc; on every output."""
    textfile = tmp_path / "links.prom"
    options = ("--duration", "3s", "--max-mib", "8", "--json", "--textfile", str(textfile))
    with Network(RANKS) as network:
        network.limit(1, [3], MEGABITS)
        network.limit(3, [1], MEGABITS)
        ranks = [
            zygote.start(
                tmp_path / f"output-{rank}",
                *("tests.e2e.network", *COMMAND, *options),
                **network.environment(rank),
            )
            for rank in range(RANKS)
        ]
        ended = [rank.wait(120) for rank in ranks]
    said = ranks[0].output.read_text()
    document = json.loads(said[said.index("{") :])
    named = [(one["kind"], one["ranks"]) for one in document["named"]]
    assert ended == [1] * RANKS
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


def test_rank_that_dies_ends_all_with_a_sentence(zygote: Zygote, tmp_path: Path) -> None:
    """The others do not wait for it, and say why: one of them, while the store still answers."""
    options = ("--duration", "10m", "--timeout", f"{TIMEOUT_SECONDS}s")
    met = "rank-probe: 4 ranks on 1 node measure with gloo"
    with zygote.ranks(tmp_path, *COMMAND, *options, ranks=RANKS) as ranks:
        assert wait_for(lambda: met in ranks[0].output.read_text() or None, 60)
        os.kill(ranks[2].pid, signal.SIGKILL)
        ended = [rank.wait(TIMEOUT_SECONDS / 2) for rank in ranks]
    said = [line for rank in ranks for line in rank.output.read_text().splitlines()]
    sentences = [line for line in said if met not in line]

    assert ended == [2, 2, -signal.SIGKILL, 2]
    assert 1 <= len(sentences) < RANKS, sentences
    assert all("a rank has ended, a link is down, or" in sentence for sentence in sentences)
