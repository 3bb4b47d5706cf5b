"""Runs groups of arms in processes of their own, with the rank_probe of this or another checkout.

The benchmark's code is always that of this checkout. Before it, each process's path has a folder
with only a link to the rank_probe to be measured, so both checkouts are measured alike.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.overhead.blocks import Cost, Costs
from benchmarks.overhead.loops import LOOPS
from devstack.parts import ROOT


class Group(NamedTuple):
    """Arms that share a process, because each detaches cleanly, and the number of their blocks."""

    loop: str
    arms: tuple[str, ...]
    blocks: int


class Probe(NamedTuple):
    """The rank_probe of one checkout, and the environment of a process that imports it."""

    package: Path
    environment: dict[str, str]


@contextmanager
def probe_of(checkout: Path) -> Iterator[Probe]:
    """Yield the probe of *checkout*; raises FileNotFoundError if there is none."""
    package = (checkout / "rank_probe").resolve()
    if not (package / "__init__.py").is_file():
        raise FileNotFoundError(f"{checkout} is no checkout of Rankskew: it has no rank_probe")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rank_probe").symlink_to(package, target_is_directory=True)
        paths = [folder, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        yield Probe(
            package,
            {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "PYTHONSAFEPATH": "1",  # else the working directory would come first
                "OMP_NUM_THREADS": "1",
            },
        )


def measure_all(
    groups: Mapping[Path, Sequence[Group]], *, processes: int, steps: int
) -> dict[Path, Costs]:
    """Measure each checkout's *groups*; return the figures of each checkout.

    A round runs every group of every checkout once, in random order, so that a change in the
    machine's speed affects all of them.
    """
    found: dict[Path, Costs] = {checkout: {} for checkout in groups}
    with ExitStack() as stack:
        probes = {checkout: stack.enter_context(probe_of(checkout)) for checkout in groups}
        jobs = [(checkout, group) for checkout, each in groups.items() for group in each]
        for _ in range(processes):
            for checkout, group in random.sample(jobs, len(jobs)):
                for name, costs in run(group, steps, probes[checkout]).items():
                    found[checkout].setdefault(name, []).extend(costs)
    return found


def run(group: Group, steps: int, probe: Probe) -> Costs:
    """Measure *group* in its own process, or in as many as its loop has ranks.

    Raises RuntimeError if it fails, with the end of stderr, or if it used another rank_probe.
    """
    ranks = LOOPS[group.loop].ranks
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    command = [sys.executable, "-m", *(launcher if ranks > 1 else ()), "benchmarks.overhead.blocks"]
    command += ["--loop", group.loop, "--steps", str(steps), "--blocks", str(group.blocks)]
    command += ["--seed", str(random.randrange(1_000_000)), *group.arms]
    done = subprocess.run(
        command, env=probe.environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{group} could not be measured: {done.stderr[-2000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    if Path(told["probe"]) != probe.package:
        raise RuntimeError(f"{group}: measured {told['probe']} instead of {probe.package}")
    return {name: [Cost(*each) for each in costs] for name, costs in told["costs"].items()}
