"""What several pages say in short of the measurements."""

from collections.abc import Sequence

from benchmarks.accuracy.plan import HEALTHY, JOIN, SINGLE
from benchmarks.report import last as rows
from generators.markdown import table


def evidence() -> str:
    """Return the results on planted faults, how fast they are named, and the cost of a step."""
    cells = [row for row in rows("accuracy") if row["way"] != JOIN]
    planted = [
        row["rank"] and row["stage"]
        for row in cells
        if row["fault"] in SINGLE and row["found"] is not None and row["size"] >= 0.1
    ]
    healthy = [row["false alarms"] > 0 for row in cells if row["fault"] in HEALTHY]
    running = [
        row for row in rows("latency") if row["healthy before, s"] and row["scrape, s"] == 15
    ]
    [probe] = [
        row for row in rows("overhead") if row["what"] == "added to a step: probe, automatic"
    ]
    return table(
        ("what", "measured", "by"),
        (
            (
                "delays of 10 % of a step and more, planted in real training jobs",
                f"rank and stage right in {sum(planted)} of {len(planted)} runs",
                "`make bench-accuracy`",
            ),
            (
                "healthy runs with a false alarm",
                f"{sum(healthy)} of {len(healthy)}",
                "`make bench-accuracy`",
            ),
            (
                "time from a fault in a running job to its alert, scraped every 15 s",
                f"median {_range([row['median, s'] for row in running])} s, "
                f"at most {max(row['max, s'] for row in running):.0f} s",
                "`make bench-latency`",
            ),
            (
                "time that the probe adds to a training step",
                f"{probe['median']:.0f} µs",
                "`make bench-overhead`",
            ),
        ),
    )


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}"


def series() -> str:
    """Return how many series a node has, and how many the rules add for all nodes."""
    page = rows("scrape")[0]
    added = [row["head series"] / row["scraped series"] - 1 for row in rows("scale")]
    return (
        f"{page['gpus']} GPUs, {page['ranks']} ranks and their node [had {page['series']}]"
        f"(costs.md#a-scrape); in jobs of thousands of ranks the rules record "
        f"[{min(added) * 100:.0f} to {max(added) * 100:.0f} %]"
        f"(costs.md#rules-for-thousands-of-ranks) on top of what is scraped."
    )
