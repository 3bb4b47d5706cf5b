"""The figures of the documentation, from the benchmarks' results."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy.plan import HEALTHY
from docs.markdown import table

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"

# These rows of benchmarks/overhead are the probe; the others are compared with it.
ADDED = "added to a step: "
OURS = f"{ADDED}probe, automatic"
PUSH = "CPU of a push, one a second"
# The most that the probe may cost, in µs of wall time, and of CPU where the wall time includes
# waits for other ranks.
GOALS = {OURS: ("median", 10), PUSH: ("median", 300)} | {
    f"{OURS}, DDP, rank {rank}": ("CPU median", 15) for rank in (0, 1)
}


def result(name: str) -> dict[str, Any]:
    """Return one benchmark's result: its rows and the machine they were measured on."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of one benchmark's result."""
    found: list[dict[str, Any]] = result(name)["rows"]
    return found


def masking() -> str:
    """Return the naive numbers beside ours, a row for each place of the delay."""
    found = rows("masking")
    return table(
        tuple(found[0]),
        [tuple(_short(value) for value in row.values()) for row in found],
    )


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
                f"{_median(f'{ADDED}{tool}'):.0f} µs" for tool in ("probe, automatic", "traceml-ai")
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
    cells = rows("accuracy")
    to_find = [row for row in cells if row["found"] is not None]
    for what, found in (
        ("delays of 10 % of a step and more", [row for row in to_find if row["size"] >= 0.1]),
        ("delays of 5 %", [row for row in to_find if row["size"] < 0.1]),
    ):
        right = sum(row["rank"] and row["stage"] for row in found)
        yield (
            f"{what}, planted in real training jobs",
            f"rank and stage right in {right} of {len(found)} runs",
        )
    healthy = [row for row in cells if row["fault"] in HEALTHY]
    accused = sum(row["false alarms"] > 0 for row in healthy)
    yield "healthy runs with a false alarm", f"{accused} of {len(healthy)}"


def _by_interval() -> dict[float, list[dict[str, Any]]]:
    found: dict[float, list[dict[str, Any]]] = {}
    for row in rows("latency"):
        if row["healthy before, s"]:
            found.setdefault(row["scrape, s"], []).append(row)
    return found


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}"


def _median(what: str) -> float:
    found: float = next(row["median"] for row in rows("overhead") if row["what"] == what)
    return found


def overhead() -> str:
    """Return what each tool adds to a step, beside what the probe adds, and the probe's moves."""
    ours = next(row["median"] for row in rows("overhead") if row["what"] == OURS)
    cells = [
        (row["what"], _interval(row), _interval(row, "CPU "), _percent(row), _times(row, ours))
        for row in rows("overhead")
    ]
    header = (
        "what",
        "median (95 % confidence interval)",
        "CPU of the training thread",
        "share of a 100 ms step",
        "times the probe, automatic",
    )
    return f"{_measured_with('overhead')}\n{_beside_goals()}\n\n{table(header, cells)}"


def _beside_goals() -> str:
    found = {row["what"]: row for row in rows("overhead")}
    return "\n".join(
        f"*{what}*: {found[what][kind]:.3g} µs{' of CPU' if kind != 'median' else ''}, "
        f"{'within' if found[what][kind] <= goal else '**over**'} the goal of {goal} µs."
        for what, (kind, goal) in GOALS.items()
        if what in found
    )


def join() -> str:
    """Return the duration of a round of the join, and what it adds to live training."""
    cells = [
        (
            f"{row['ranks']:,}",
            row["what"],
            _spread(row),
            "" if row["% of a round"] is None else f"{row['% of a round']:.2g} %",
        )
        for row in rows("join")
    ]
    header = ("ranks", "what", "median", "share of the time between rounds")
    return f"{_measured_with('join')}\n\n{table(header, cells)}"


def series() -> str:
    """Return how many series a node has, and how many the rules add for all nodes."""
    page = rows("scrape")[0]
    added = [row["head series"] / row["scraped series"] - 1 for row in rows("scale")]
    return (
        f"{page['gpus']} GPUs, {page['ranks']} ranks and their node [had {page['series']}]"
        f"(overhead.md#a-scrape); in jobs of thousands of ranks the rules record "
        f"[{min(added) * 100:.0f} to {max(added) * 100:.0f} %](scale.md) on top of what is scraped."
    )


def endurance() -> str:
    """Return the memory of a process after each million steps."""
    cells = [(f"{row['steps']:,}", f"{row['RSS MiB']:.2f} MiB") for row in rows("endurance")]
    return f"{_measured_with('endurance')}\n\n{table(('steps', 'resident memory'), cells)}"


def scrape() -> str:
    """Return the cost of an exporter, a row for each figure and a column per source of PCIe."""
    found = rows("scrape")
    names = [name for name in found[0] if name != "PCIe"]
    cells = [(name, *(_short(row[name]) for row in found)) for name in names]
    header = ("", *(f"PCIe by {row['PCIe']}" for row in found))
    return f"{_measured_with('scrape')}\n\n{table(header, cells)}"


def _measured_with(name: str) -> str:
    machine = result(name)["machine"]
    versions = [f"{package} {machine[package]}" for package in machine if package != "cpus"]
    return f"Measured on {machine['cpus']} CPUs with {', '.join(versions)}."


def _spread(row: dict[str, Any]) -> str:
    median, low, high = (_number(row[name]) for name in ("median", "q1", "q3"))
    return f"{median} {row['unit']} (quartiles {low} to {high})"


def _interval(row: dict[str, Any], clock: str = "") -> str:
    """Return a median with the interval it lies in; nothing if *clock* did not measure it."""
    median, low, high = (row[f"{clock}{name}"] for name in ("median", "95 % from", "95 % to"))
    if median is None:
        return ""
    told = f"{_number(median)} {row['unit']}"
    return told if low is None else f"{told} ({_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _percent(row: dict[str, Any]) -> str:
    percent = row["% of a 100 ms step"]
    return "" if percent is None else f"{percent:.2g} %"


def _times(row: dict[str, Any], ours: float) -> str:
    return f"{row['median'] / ours:.1f}" if row["what"].startswith(ADDED) else ""


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def library_costs() -> dict[str, str]:
    """Return the table behind the choice of a library, by its benchmark's name."""
    return {"ingest_costs": _ingest_costs()}


def _ingest_costs() -> str:
    """Return what a push costs, in each way that was tried."""
    found = rows("ingest_costs")
    header = tuple(key.replace("CPU µs a push", "CPU of a push") for key in found[0])
    cells = [
        (row["way"], f"{pushes:.0f} µs", f"{share:.2%} of a core")
        for row in found
        for pushes, share in [[row[key] for key in list(row)[1:]]]
    ]
    return f"On {result('ingest_costs')['machine']['cpus']} CPUs.\n\n{table(header, cells)}"
