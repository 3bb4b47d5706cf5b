"""Links: what is measured, what of it stands out under one name, and what the command says."""

import itertools
import json
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rank_probe.collectives import command, measure, report, verdict
from rank_probe.collectives.measure import CollectiveTime
from rank_probe.collectives.verdict import PairTime, Ranks
from tests import printed
from tests.exporter.running import ROOT
from tests.rank_probe.fakes import Slower, hosts, pair_times, result
from tests.rank_probe.forks import Zygote


@pytest.mark.parametrize(
    ("of", "arguments", "expected"),
    [
        # A rank's share is rounded down to 16 bytes, as nccl-tests does, and is never empty.
        (measure.sizes_up_to, (2**20, 4), [2**12, 2**14, 2**16, 2**18, 2**20]),
        (measure.sizes_up_to, (100, 2), [96]),
        (measure.sizes_up_to, (8, 4), [64]),
        # Few repetitions of what is slow, but enough for a median.
        (measure.repetitions_in, (1.0, 0.01), 100),
        (measure.repetitions_in, (1.0, 10.0), measure.FEWEST),
        (measure.repetitions_in, (1.0, 0.0), measure.MOST),
        # 1 GB in a second over eight ranks.
        (CollectiveTime("all_reduce", 10**9, 1.0).bus_bandwidth, (8,), 1.75e9),
        (CollectiveTime("all_gather", 10**9, 1.0).bus_bandwidth, (8,), 0.875e9),
    ],
)
def test_what_is_measured(
    of: Callable[..., Any], arguments: tuple[Any, ...], expected: Any
) -> None:
    """Sizes that grow by the factor, repetitions that fill the time, the bus of nccl-tests."""
    assert of(*arguments) == expected


@pytest.mark.parametrize("ranks", [2, 3, 8, 9])
def test_every_pair_meets(ranks: int) -> None:
    """Every pair is measured once, in as few rounds as can be."""
    found = measure.rounds(ranks)

    assert sorted(pair for each in found for pair in each) == list(combinations(range(ranks), 2))
    assert len(found) == (ranks - 1 if ranks % 2 == 0 else ranks)
    assert all(len({rank for pair in each for rank in pair}) == 2 * len(each) for each in found)


def test_pair_is_timed_each_way_by_its_first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """By messages that nothing held up, less their latency: here 10 µs, 1 GB/s and 500 MB/s."""
    now, moved, begun = [0.0], itertools.count(), list[str]()

    def link(bytes_per_second: float) -> Callable[[Tensor, int], None]:
        def move(tensor: Tensor, _: int) -> None:
            held_up = 1.0 if next(moved) % 8 < 5 else 3.0
            now[0] += held_up * (1e-5 + tensor.nbytes / bytes_per_second)

        return move

    fake = SimpleNamespace(send=link(1e9), recv=link(5e8))
    monkeypatch.setattr(measure, "distributed", fake)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    ranks = (measure.World(rank, 2, "gloo", torch.device("cpu"), begun.append) for rank in (0, 1))
    (one,), none = (measure._time_pair(rank, (0, 1), 2**22, 20.0) for rank in ranks)

    assert one.ranks == (0, 1)
    assert one.latency_seconds == pytest.approx(1e-5, rel=0.01)
    assert (one.there, one.back) == pytest.approx((1e9, 5e8), rel=0.01)
    assert none == []


def test_what_seems_slow_is_repeated_beside_others_of_its_ranks() -> None:
    """So partners do not look slow too; a healthy world repeats nothing, a small one all pairs."""
    small = hosts(1, 8)
    assert measure.to_repeat(pair_times(small), small) == []
    assert len(measure.to_repeat(pair_times(small, {(0, 5): 3.0}), small)) == 28
    where = hosts(1, 64)
    repeated = measure.to_repeat(pair_times(where, {(9, other): 3.0 for other in range(64)}), where)
    doubts = {pair for pair in repeated if 9 in pair}
    partners = {rank for pair in doubts for rank in pair} - {9}

    assert len(doubts) >= 6
    assert len(repeated) < 100
    assert all(any(rank in pair for pair in set(repeated) - doubts) for rank in partners)


def test_readings_of_a_pair_are_its_fastest_and_their_noise() -> None:
    """Noise is of the median pair: slow now and then does not hide what is slow always."""
    steady = [PairTime((0, 1), 1e-5, 10.0, 10.0)] * 3
    shaky = [PairTime((0, 2), seconds, 10.0, 10.0) for seconds in (1e-5, 9e-5, 8e-5)]
    double = [PairTime((1, 2), seconds, 10.0, 5.0) for seconds in (1e-5, 2e-5, 2e-5)]
    two = [PairTime((0, 1), 2e-5, 10.0, 30.0), PairTime((0, 1), 1e-5, 20.0, 25.0)]

    assert measure.noise([*steady, *shaky, *double]) == {"latency": 2.0, "bandwidth": 1.0}
    assert measure.fastest(two) == [PairTime((0, 1), 1e-5, 20.0, 30.0)]


def each(ranks: int, *senders: int, by: float = 3.0) -> Slower:
    """Make all that the *senders* send to others slower."""
    others = [rank for rank in range(ranks) if rank not in senders]
    return {(sender, other): by for sender in senders for other in others}


def both(*pairs: tuple[int, int]) -> dict[Ranks, float]:
    return {link: 3.0 for pair in pairs for link in (pair, pair[::-1])}


SENDS, RECEIVES = ((1,), "sends"), ((1,), "receives")


@pytest.mark.parametrize(
    ("where", "slower", "latency", "found"),
    [
        # A link is found each way: half the bandwidth from 0 to 2 is not that from 2 to 0.
        *((hosts(1, ranks), {(0, 2): 2.0}, {}, {((0, 2), "")}) for ranks in (3, 8)),
        # Of four ranks half the links are those of the slow one, whose partners are not slow.
        *((hosts(1, ranks), each(ranks, 1), {}, {SENDS}) for ranks in (3, 4, 64)),
        # A third of the links may be slow, each way.
        (hosts(1, 4), both((0, 1), (2, 3)), {}, {(link, "") for link in both((0, 1), (2, 3))}),
        # What the rank's other links have in common does not hide what one of them lacks.
        (hosts(1, 4), {(1, 0): 2.0, (1, 2): 2.0, (1, 3): 80.0}, {}, {SENDS, ((1, 3), "")}),
        # Links between nodes are ten times slower than inside, and compared with their like.
        (hosts(2, 4), {}, {}, set()),
        # Six GPUs on one switch and two on another: twelve of 28 pairs are no broken links.
        (hosts(1, 8), both(*((near, far) for near in range(6) for far in (6, 7))), {}, set()),
        # A rank's own network port, and not its place in the node.
        (hosts(3, 2), dict.fromkeys([(1, 2), (1, 3), (1, 4), (1, 5)], 4.0), {}, {SENDS}),
        # Two ranks have nothing to compare with.
        (hosts(1, 2), {(0, 1): 50.0}, {}, set()),
        # Latency is the same both ways.
        (hosts(1, 3), {}, {(1, 2): 3.0}, {((1, 2), ""), ((2, 1), "")}),
        (hosts(1, 4), {}, dict.fromkeys([(0, 1), (1, 2), (1, 3)], 5.0), {SENDS, RECEIVES}),
        # The only two ranks of a node: that both are slow says nothing about either.
        (hosts(4, 2), {}, {(2, 3): 9.0}, {((2, 3), ""), ((3, 2), "")}),
    ],
)
def test_reading_that_stands_out(
    where: tuple[str, ...], slower: Slower, latency: Slower, found: set[tuple[Ranks, str]]
) -> None:
    """A link stands out among links of its kind; a rank stands out by its fastest link."""
    slow = verdict.slow_readings(pair_times(where, slower, latency), where)

    assert {one.measure for one in slow} <= {"latency" if latency else "bandwidth"}
    assert {(one.ranks, one.way) for one in slow} == found


def test_noise_raises_the_bar_and_doubt_comes_before_suspicion() -> None:
    """Where readings of one pair differ by three times, nine times slower is not enough.

    A slow link in a noisy world is measured again, though it is not accused at once. Noise of a
    fifth on every reading accuses one world in fifty at the most.
    """
    where = hosts(1, 4)
    times = pair_times(where, latency={(1, 2): 12.0})
    noisy = pair_times(where, {(1, 3): 12.0, (3, 1): 12.0}, noise=0.6, seed=5)

    assert len(verdict.slow_readings(times, where)) == 2
    assert verdict.slow_readings(times, where, {"latency": 3.0, "bandwidth": 1.0}) == []
    assert len(verdict.slow_readings(times, where, {"latency": 1.0, "bandwidth": 3.0})) == 2
    assert (1, 3) in verdict.doubtful(noisy, where)
    worlds = [(hosts(1, 4 + seed % 5), seed) for seed in range(150)]
    readings = ((pair_times(each, noise=0.2, seed=seed), each) for each, seed in worlds)
    assert sum(bool(verdict.slow_readings(*each)) for each in readings) <= 3


def named(where: tuple[str, ...], slower: Slower, latency: Slower | None = None) -> list[str]:
    """Return the sentence of each that is slow."""
    slow = verdict.slow_readings(pair_times(where, slower, latency), where)
    return [report.sentence(one) for one in verdict.findings(slow, where)]


def test_what_is_slow_at_several_things_is_named_once() -> None:
    """A link with both directions and its latency, a rank, or a node of two slow ranks.

    The slowest comes first.
    """
    (link,) = named(hosts(1, 4), {(1, 3): 4.0, (3, 1): 2.0}, {(1, 3): 10.0})
    first, second = named(hosts(1, 8), {(0, 1): 3.0, (4, 6): 9.0})

    assert link == (
        "the link between ranks 1 and 3 (n0) is slow inside nodes: "
        "latency 200 µs against 20 µs (10.0 times); "
        "bandwidth from 1 to 3 2.5 GB/s against 10 GB/s (4.0 times); "
        "bandwidth from 3 to 1 5 GB/s against 10 GB/s (2.0 times)"
    )
    slow = "is slow between nodes: sends at 200 MB/s against 1 GB/s (5.0 times)"
    assert named(hosts(4, 1), each(4, 2, by=5.0)) == [f"rank 2's link (n2) {slow}"]
    assert named(hosts(3, 2), each(6, 2, 3, by=5.0)) == [f"node n1 {slow}"]
    assert first.startswith("the link between ranks 4 and 6 (n0) ")
    assert second.startswith("the link between ranks 0 and 1 (n0) ")


HEALTHY = result(pair_times(hosts(2, 2)), hosts(2, 2))
SLOW = result(pair_times(hosts(2, 4), {(1, 3): 4.0}), hosts(2, 4))

STUCK = """
import time
from rank_probe.collectives.command import Watchdog
watchdog = Watchdog(3, 0.3)
watchdog.start()
watchdog.begins("the exchange between ranks 3 and 5")
time.sleep(60)
"""
LAUNCHED = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "2", "SLURM_STEP_ID": "0"}
MASTER = {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"}


def test_rank_that_waits_in_vain_ends() -> None:
    """A rank that waits in vain exits with status 2 and reports what it was doing."""
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, cwd=ROOT)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "rank-probe: rank 3 waited 0 s in vain during the exchange between ranks 3 and 5: a rank "
        "has ended or hangs, or a link is down; for slow links raise --timeout or lower --max-mib\n"
    )


def test_place_and_backend_come_from_the_launcher_and_torch() -> None:
    """torchrun's variables, or those of SLURM and MPI; without a GPU it is gloo."""
    ranks = [command.place(launcher | MASTER) for launcher in (LAUNCHED, SLURM)]

    assert [one.rank for one in ranks] == [3, 5]
    assert [one.world_size for one in ranks] == [8, 6]
    assert [one.local_rank for one in ranks] == ["1", "2"]
    assert command.chosen(None) == "gloo"
    with pytest.raises(command.CannotMeasure, match="nccl needs a GPU"):
        command.chosen("nccl")
    for environment, why in (
        ({}, "no launcher has given this process a rank; start it with: "),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "one rank alone has no link; start at least two"),
        (LAUNCHED, "MASTER_ADDR is not set, so ranks cannot reach each other"),
    ):
        with pytest.raises(command.CannotMeasure, match=why):
            command.place(environment)


@pytest.mark.jobs
def test_ranks_measure_their_links(zygote: Zygote, tmp_path: Path) -> None:
    """Two real ranks take turns; rank 0 alone says what it found, and that one link is no problem.

    node_exporter, another user, never reads half of a file. One that cannot be written is said,
    with the status of a rank that cannot measure.
    """
    words = ("bench-collectives", "--duration", "1s", "--max-mib", "1", "--json", "--textfile")
    series = tmp_path / "series" / "links.prom"
    series.parent.mkdir()
    for path, status in ((series, 0), (tmp_path, 2)):
        folder = tmp_path / str(status)
        folder.mkdir()
        with zygote.ranks(folder, "rank_probe", *words, str(path), ranks=2) as forks:
            ended = [fork.wait() for fork in forks]
            assert ended[0] == status
            first, other = (fork.output.read_text() for fork in forks)
        document = json.loads(first[first.index("{") : first.rindex("}") + 1])

        printed.check(document)
        assert first.startswith("rank-probe: 2 ranks on 1 node measure with gloo, for 1 s or more")
        assert (document["slow"], document["ranks"], document["backend"]) == (False, 2, "gloo")
        assert [(pair["scope"], pair["ranks"]) for pair in document["pairs"]] == [
            ("intra-node", [0, 1])
        ]
        assert document["message_bytes"] == 2**18
        sizes = {one["size_bytes"] for one in document["collectives"]}
        assert sizes == {4**n for n in range(6, 11)}
        assert ("cannot write" in first) == (status == 2)
        assert "{" not in other
    measured = 'rankskew_collective_measured_timestamp_seconds{backend="gloo",ranks="2"} '
    assert measured in series.read_text()
    assert stat.S_IMODE(series.stat().st_mode) == 0o644
    assert list(series.parent.iterdir()) == [series]


def test_lines_have_every_figure_and_end_with_the_verdict() -> None:
    """4 KiB in 1 ms over four ranks: the bus carries one and a half times as much.

    Pairs inside and between nodes have medians of their own. One link alone is neither slow nor
    fast; the pairs of 64 ranks are too many to read.
    """
    lines = report.as_text(HEALTHY).splitlines()
    alone = report.as_text(result(pair_times(hosts(1, 2)), hosts(1, 2)))
    many = report.as_text(result(pair_times(hosts(8, 8)), hosts(8, 8)))

    assert lines[0] == "4 ranks on 2 nodes, gloo, messages of 1 MiB"
    assert "all_reduce  4 KiB  1 ms    6.14 MB/s" in lines
    assert lines[7:9] == [
        "median of 2  20 µs    10 GB/s  10 GB/s  intra-node",
        "median of 4  200 µs   1 GB/s   1 GB/s   inter-node",
    ]
    assert "0 and 1      20 µs    10 GB/s  10 GB/s  intra-node" in lines
    assert lines[-1] == "ok: no link stands out"
    assert report.as_text(SLOW).splitlines()[-1] == (
        "slow: the link between ranks 1 and 3 (n0) is slow inside nodes: "
        "bandwidth from 1 to 3 2.5 GB/s against 10 GB/s (4.0 times)"
    )
    assert alone.endswith("two ranks have one link, and nothing to compare it with")
    assert "medians of the pairs; all of them: see --json" in many
