"""The tables of docs/scale.md on several Prometheus: what travels, sizing, and a plan."""

import math
from typing import Any, Final

from benchmarks.scale_run import RANKS_PER_NODE
from docs.figures import rows
from docs.markdown import table

JUDGE: Final = "rank 0: the same, CPU of the thread"
SCRAPE_SECONDS: Final = 15
CORES: Final = 2
# Half of what was measured on one Prometheus.
RANKS_OF_A_SHARD: Final = 8_192
PLANNED_RANKS: Final = 100_000
# The judge's rounds in large jobs, as in docs/overhead.md.
ROUND_SECONDS: Final = 10
# The share of a core that its thread may take of the training process.
MOST_OF_A_CORE: Final = 0.05


def travel() -> str:
    """Return how much travels from a shard, by the number of ranks."""
    cells = [
        (
            f"{row['ranks']:,}",
            f"{row['scraped series']:,}",
            f"{row['travelling']:,}",
            f"{row['of nodes']:,}",
            str(row["of the job"]),
            str(row["of late ranks and their neighbours"]),
            f"{row['page bytes'] / 1e3:,.0f} kB",
            f"{row['page bytes, gzip'] / 1e3:,.0f} kB",
        )
        for row in rows("travel")
    ]
    header = (
        "ranks",
        "series scraped",
        "series that travel",
        "of nodes",
        "of the job",
        "of the late rank and its node",
        "page",
        "compressed",
    )
    return table(header, cells)


def sizing() -> str:
    """Return what the Prometheus of each size need, in proportion to the largest measurement."""
    cells = [_size(row) for row in rows("travel")]
    header = (
        "ranks",
        "shards",
        "series of a shard",
        "memory of a shard",
        "CPU of a shard, of two cores",
        "to the global one, before compression",
    )
    note = (
        f"Memory and CPU in proportion to those of one Prometheus with {_largest()['ranks']:,} "
        "ranks and all rules."
    )
    return f"{table(header, cells)}\n\n{note}"


def _size(row: dict[str, Any]) -> tuple[str, ...]:
    largest = _largest()
    shards = math.ceil(row["ranks"] / RANKS_OF_A_SHARD)
    share = row["ranks"] / shards / largest["ranks"]
    cpu = _cpu_seconds(largest) * share / (CORES * SCRAPE_SECONDS)
    memory = largest["RSS MiB"] * share / 1024
    return (
        f"{row['ranks']:,}",
        "no need" if shards == 1 else str(shards),
        f"{row['scraped series'] / shards / 1e3:,.0f}k",
        f"{memory:.1f} GiB" if memory > 0.5 else "under 0.5 GiB",
        f"{100 * cpu:.0f} %" if cpu > 0.05 else "under 5 %",
        f"{row['page bytes'] / SCRAPE_SECONDS / 1e3:.1f} kB/s",
    )


def plan() -> str:
    """Return the arithmetic of 100,000 ranks."""
    largest, most = _largest(), max(rows("travel"), key=lambda row: row["ranks"])
    nodes = PLANNED_RANKS // RANKS_PER_NODE
    shards = math.ceil(PLANNED_RANKS / RANKS_OF_A_SHARD)
    share = PLANNED_RANKS / shards / largest["ranks"]
    of_nodes = round(most["of nodes"] / most["nodes"] * nodes)
    of_jobs = most["of the job"] * shards
    travelling = of_nodes + of_jobs + most["of late ranks and their neighbours"]
    size = most["page bytes"] / most["travelling"] * travelling
    series = most["scraped series"] / most["ranks"] * PLANNED_RANKS / shards
    judge, step = _judge()
    seconds = (judge["median"] + step * (PLANNED_RANKS - judge["ranks"])) / 1e3
    rounds = math.ceil(seconds / MOST_OF_A_CORE)
    lines = [
        f"- **Shards**: {PLANNED_RANKS:,} / {RANKS_OF_A_SHARD:,} = {shards} with "
        f"{nodes // shards:,} nodes each: {series / 1e6:.1f} million series, "
        f"{largest['RSS MiB'] * share / 1024:.1f} GiB and "
        f"{_cpu_seconds(largest) * share:.1f} CPU seconds of the {CORES * SCRAPE_SECONDS} that two "
        f"cores have in {SCRAPE_SECONDS} s.",
        f"- **The global one**: {most['of nodes'] / most['nodes']:.0f} × {nodes:,} nodes + "
        f"{most['of the job']} × {shards} shards of one job + "
        f"{most['of late ranks and their neighbours']} of a late rank = {travelling:,} series, "
        f"{size / 1e6:.1f} MB in {SCRAPE_SECONDS} s before compression. "
        f"Each further job adds up to {most['of the job']} for each shard that it is on, and each "
        f"late rank as many as the first. One shard has {series / travelling:.0f} times as many.",
        f"- **Rank 0 of one job with all ranks**: {judge['median']:.0f} ms for {judge['ranks']:,} "
        f"ranks ({step * 1e3:.0f} µs for each further one, between the two largest "
        f"[measurements](overhead.md#the-per-step-join)) are {seconds:.1f} CPU seconds in each "
        f"round of {ROUND_SECONDS} s, {100 * seconds / ROUND_SECONDS:.0f} % of a core: too much. "
        f"Its rounds must then be {rounds} s apart, and nobody has measured its store at that "
        "size. Several jobs of up to 16,384 ranks each have a judge each, and need nothing.",
    ]
    return "\n".join(lines)


def _judge() -> tuple[dict[str, Any], float]:
    """Return the largest measurement of rank 0's CPU, in ms, and what one more rank adds."""
    found = sorted(
        (row for row in rows("join") if row["what"] == JUDGE),
        key=lambda row: row["ranks"],
    )
    (few, before), (many, after) = ((row["ranks"], row) for row in found[-2:])
    return after, (after["median"] - before["median"]) / (many - few)


def _largest() -> dict[str, Any]:
    """Return the measurement of one Prometheus with the most ranks whose jobs have a judge."""
    found = [row for row in rows("scale") if row["source"] == "join" and row["jobs"] == 1]
    return max(found, key=lambda row: row["ranks"])


def _cpu_seconds(row: dict[str, Any]) -> float:
    return float(row["rules CPU s of 15"] + row["CPU s of 15 without rules"])
