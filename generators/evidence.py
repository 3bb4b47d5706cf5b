"""What several pages say in short of the measurements."""

from collections.abc import Iterator, Sequence

from benchmarks.accuracy.plan import HEALTHY, JOIN, SINGLE
from benchmarks.report import Row
from benchmarks.report import last as rows
from generators.markdown import table


def evidence() -> str:
    """Return the results on planted faults, how fast they are, and the cost beside another tool."""
    scraped = rows("scrape")[0]
    cells = [
        *_accuracy(),
        *(
            (
                f"time from a fault in a running job to its alert, scraped every {seconds:g} s",
                f"median {_range([row['median, s'] for row in running])} s, "
                f"at most {max(row['max, s'] for row in running):.0f} s",
            )
            for seconds, running in _by_interval().items()
        ),
        (
            "time added to a training step: Rankskew, and TraceML in the same run",
            " and ".join(
                f"{_median(f'added to a step: {tool}'):.0f} µs"
                for tool in ("probe, automatic", "traceml-ai")
            ),
        ),
        (
            f"the exporter, with {scraped['gpus']} stub GPUs and {scraped['ranks']} ranks",
            f"{scraped['CPU, share of a core'] * 100:.1f} % of a core, "
            f"{scraped['RSS MiB, NVML child included']:.0f} MiB",
        ),
    ]
    return table(("what", "measured"), cells)


def _accuracy() -> Iterator[tuple[str, str]]:
    cells = [row for row in rows("accuracy") if row["way"] != JOIN]
    to_find = [row for row in cells if row["fault"] in SINGLE and row["found"] is not None]
    for what, found in (
        ("delays of 10 % of a step and more", [row for row in to_find if row["size"] >= 0.1]),
        ("delays of 5 %", [row for row in to_find if row["size"] == 0.05]),
    ):
        right = sum(row["rank"] and row["stage"] for row in found)
        yield (
            f"{what}, planted in real training jobs",
            f"rank and stage right in {right} of {len(found)} runs",
        )
    healthy = [row for row in cells if row["fault"] in HEALTHY]
    accused = sum(row["false alarms"] > 0 for row in healthy)
    yield "healthy runs with a false alarm", f"{accused} of {len(healthy)}"


def _by_interval() -> dict[float, list[Row]]:
    found: dict[float, list[Row]] = {}
    for row in rows("latency"):
        if row["healthy before, s"]:
            found.setdefault(row["scrape, s"], []).append(row)
    return found


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}"


def _median(what: str) -> float:
    found: float = next(row["median"] for row in rows("overhead") if row["what"] == what)
    return found


def series() -> str:
    """Return how many series a node has, and how many the rules add for all nodes."""
    page = rows("scrape")[0]
    added = [row["head series"] / row["scraped series"] - 1 for row in rows("scale")]
    return (
        f"{page['gpus']} GPUs, {page['ranks']} ranks and their node [had {page['series']}]"
        f"(overhead.md#a-scrape); in jobs of thousands of ranks the rules record "
        f"[{min(added) * 100:.0f} to {max(added) * 100:.0f} %](scale.md) on top of what is scraped."
    )
