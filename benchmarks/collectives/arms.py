"""Under torchrun: times each collective with the probe's code and with a plain loop, in turn."""

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch import distributed

from benchmarks.report import median_interval
from rank_probe.collectives.report import show_bytes
from rank_probe.collectives.timing import COLLECTIVES, operation, repeat, whole_size
from rank_probe.collectives.world import Watchdog, World, joined, place

SIZES_BYTES: Final = (16 * 2**10, 256 * 2**10, 4 * 2**20)
BLOCKS: Final = 101
BLOCK_SECONDS: Final = 0.1
TIMEOUT_SECONDS: Final = 120.0


def plain(run: Callable[[], Any], repetitions: int) -> float:
    """Return the median seconds of *run*, as anybody would time it."""
    for _ in range(3):
        run()
    distributed.barrier()
    seconds = []
    for _ in range(repetitions):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def blocks(world: World, run: Callable[[], object]) -> Iterator[tuple[float, float]]:
    """Yield the seconds of both arms, block by block, each first in every other block."""
    repetitions = len(repeat(world, run, BLOCK_SECONDS))
    for block in range(BLOCKS):
        arms: dict[str, float] = {}
        for arm in ("ours", "plain") if block % 2 else ("plain", "ours"):
            world.says(f"block {block} of {arm}")
            if arm == "ours":
                arms[arm] = statistics.median(repeat(world, run, BLOCK_SECONDS))
            else:
                arms[arm] = plain(run, repetitions)
        yield arms["ours"], arms["plain"]


def main() -> None:
    """Print a line of JSON for each collective and size on rank 0: means over ranks."""
    me = place(os.environ)
    watchdog = Watchdog(me.rank, TIMEOUT_SECONDS)
    with joined(me, "gloo", TIMEOUT_SECONDS, watchdog) as world:
        world.connect(TIMEOUT_SECONDS)
        for collective in COLLECTIVES:
            for size in SIZES_BYTES:
                size_bytes = whole_size(size, world.size)
                every_rank = world.exchange(
                    list(blocks(world, operation(world, collective, size_bytes)))
                )
                of_blocks = [
                    tuple(statistics.fmean(arm) for arm in zip(*ranks, strict=True))
                    for ranks in zip(*every_rank, strict=True)
                ]
                if me.rank == 0:
                    row = {"collective": collective, "size": show_bytes(size_bytes)}
                    print(json.dumps(row | compared(of_blocks)), flush=True)


def compared(of_blocks: list[tuple[float, ...]]) -> dict[str, Any]:
    """Return the medians of both arms, and the median ratio of blocks with its 95 % interval."""
    ours, plain = zip(*of_blocks, strict=True)
    ratio = median_interval([one / other for one, other in of_blocks])
    return {
        "ours ms": statistics.median(ours) * 1e3,
        "plain ms": statistics.median(plain) * 1e3,
        "ratio": ratio["median"],
        "from": ratio["95 % from"],
        "to": ratio["95 % to"],
        "blocks": len(of_blocks),
    }


if __name__ == "__main__":
    main()
