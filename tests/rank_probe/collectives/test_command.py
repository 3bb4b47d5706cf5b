"""What `rank-probe bench-collectives` prints and writes; who cannot measure says so, and ends."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rank_probe.collectives import command
from rank_probe.collectives.command import CannotMeasure, chosen, place
from rank_probe.collectives.report import (
    BANDWIDTHS,
    BYTES,
    SECONDS,
    Units,
    as_json,
    as_text,
    shown,
    write_textfile,
)
from rank_probe.command_line.grammar import WrongCommand
from tests.exporter.running import ROOT
from tests.rank_probe.collectives.worlds import hosts, pair_times, result

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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--max-mib", "4X"], "argument --max-mib: '4X' is not a whole number above 0"),
        (["--max-mib", "0"], "argument --max-mib: '0' is not a whole number above 0"),
        (["--timeout", "0s"], "argument --timeout: '0s' is not a duration above 0"),
        (["--backend", "mpi"], "argument --backend: invalid choice: 'mpi'"),
        (["--textfile", "/absent/p.prom"], "there is no directory /absent"),
    ],
)
def test_wrong_option_is_explained(words: list[str], sentence: str) -> None:
    """Before a rank waits for another."""
    with pytest.raises(WrongCommand) as wrong:
        command.run(words)

    assert str(wrong.value).startswith(sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["-m", "rank_probe", "bench-collectives"],
            "no launcher has given this process a rank; start it with: "
            "torchrun --nproc-per-node 8 -m rank_probe bench-collectives",
        ),
        (
            ["-c", STUCK],
            "rank 3 waited 0 s in vain during the exchange between ranks 3 and 5: a rank has "
            "ended or hangs, or a link is down; for slow links raise --timeout or lower --max-mib",
        ),
    ],
    ids=["alone", "stuck"],
)
def test_rank_that_cannot_measure_ends(arguments: list[str], sentence: str) -> None:
    """With status 2, and what it was doing."""
    alone = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=alone, cwd=ROOT
    )

    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"rank-probe: {sentence}\n")


def test_place_and_backend_come_from_the_launcher_and_torch() -> None:
    """torchrun's variables, or those of SLURM and MPI; without a GPU it is gloo."""
    ranks = [place(launcher | MASTER) for launcher in (LAUNCHED, SLURM)]

    assert [one.rank for one in ranks] == [3, 5]
    assert [one.world_size for one in ranks] == [8, 6]
    assert [one.local_rank for one in ranks] == ["1", "2"]
    assert chosen(None) == "gloo"
    with pytest.raises(CannotMeasure, match="nccl needs a GPU"):
        chosen("nccl")
    with pytest.raises(CannotMeasure, match="one rank alone has no link; start at least two"):
        place({"RANK": "0", "WORLD_SIZE": "1"})
    with pytest.raises(CannotMeasure, match="MASTER_ADDR is not set, so ranks cannot reach each"):
        place(LAUNCHED)


def test_tables_have_every_figure() -> None:
    """4 KiB in 1 ms over four ranks: the bus carries one and a half times as much.

    Pairs inside and between nodes have medians of their own.
    """
    lines = as_text(HEALTHY).splitlines()

    assert lines[0] == "4 ranks on 2 nodes, gloo, messages of 1 MiB"
    assert "all_reduce  4 KiB  1 ms    6.14 MB/s" in lines
    assert lines[7:9] == [
        "median of 2  20 µs    10 GB/s  10 GB/s  intra-node",
        "median of 4  200 µs   1 GB/s   1 GB/s   inter-node",
    ]
    assert "0 and 1      20 µs    10 GB/s  10 GB/s  intra-node" in lines
    assert lines[-1] == "ok: no link stands out"


def test_last_line_is_the_verdict() -> None:
    """One link alone is neither slow nor fast; the pairs of 64 ranks are too many to read."""
    alone = as_text(result(pair_times(hosts(1, 2)), hosts(1, 2)))
    many = as_text(result(pair_times(hosts(8, 8)), hosts(8, 8)))

    assert alone.endswith("two ranks have one link, and nothing to compare it with")
    assert "medians of the pairs; all of them: see --json" in many
    assert as_text(SLOW).splitlines()[-1] == (
        "slow: the link between ranks 1 and 3 (n0) is slow inside nodes: "
        "bandwidth from 1 to 3 2.5 GB/s against 10 GB/s (4.0 times)"
    )


def test_json_has_what_the_tables_say() -> None:
    """Scripts get base units."""
    said = json.loads(as_json(SLOW))

    assert (said["slow"], said["ranks"], said["message_bytes"]) == (True, 8, 2**20)
    assert (said["named"][0]["kind"], said["named"][0]["ranks"]) == ("link", [1, 3])
    assert said["named"][0]["slow"][0]["value"] == 2.5e9
    assert said["collectives"][0]["bus_bandwidth"] == 4096 / 1e-3 * 2 * 7 / 8
    assert {pair["scope"] for pair in said["pairs"]} == {"intra-node", "inter-node"}


@pytest.mark.parametrize(
    ("units", "values", "texts"),
    [
        (BYTES, (64, 4096, 2**28), "64 B, 4 KiB, 256 MiB"),
        (SECONDS, (2.5, 0.0123, 45.6e-6, 5e-8, 0.99996), "2.5 s, 12.3 ms, 45.6 µs, 50 ns, 1 s"),
        (BANDWIDTHS, (2.5e11, 1.5e6, 12e3, 3), "250 GB/s, 1.5 MB/s, 12 kB/s, 3 B/s"),
    ],
)
def test_values_are_shown_with_a_fitting_unit(
    units: Units, values: tuple[float, ...], texts: str
) -> None:
    """Three digits; sizes are binary, bandwidths decimal."""
    assert ", ".join(shown(value, units) for value in values) == texts


def samples(path: Path) -> dict[str, dict[tuple[str, ...], float]]:
    """Return values by name and by the values of labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            name = sample.name.removeprefix("rankskew_collective_")
            found.setdefault(name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_each_figure_is_a_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is healthy has none, no 0; node_exporter, another user, never reads half of a file."""
    monkeypatch.setattr("time.time", lambda: 1000.0)
    path = tmp_path / "links.prom"
    path.write_text("old")
    write_textfile(path, SLOW)

    assert samples(path) == {
        "bus_bandwidth_bytes_per_second": {
            ("all_reduce", "4096"): pytest.approx(4096 / 1e-3 * 2 * 7 / 8),
            ("all_gather", "4096"): pytest.approx(4096 / 0.5e-3 * 7 / 8),
        },
        "measured_timestamp_seconds": {("gloo", "8"): 1000.0},
        "slow_info": {("link", "1,3", "n0", "intra-node"): 1.0},
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [each.name for each in tmp_path.iterdir()] == ["links.prom"]
    write_textfile(path, HEALTHY)
    assert "slow_info" not in samples(path)
