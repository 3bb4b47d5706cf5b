"""The tables of docs/overhead.md: what the probe, the join, a scrape and a check cost."""

from generators.markdown import table
from generators.measured.results import Row, result, rows

# These rows of benchmarks/overhead.py are the probe; the others are compared with it.
ADDED = "added to a step: "
OURS = f"{ADDED}probe, automatic"
PUSH = "CPU of a push, one a second"
# The most that the probe may cost, in µs of wall time, and of CPU where the wall time includes
# waits for other ranks.
GOALS = {OURS: ("median", 10), PUSH: ("median", 300)} | {
    f"{OURS}, DDP, rank {rank}": ("CPU median", 15) for rank in (0, 1)
}


def overhead() -> str:
    """Return what each tool adds to a step, beside what the probe adds, and the probe's moves."""
    ours = next(row["median"] for row in rows("overhead") if row["what"] == OURS)
    cells = [
        (
            row["what"],
            _interval(row),
            _interval(row, "CPU "),
            _percent(row["% of a 100 ms step"]),
            _times(row, ours),
        )
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


def on_gpu() -> str:
    """Return a step of the loop on a GPU, and what the probe adds to it."""
    header = ("what", "median (95 % confidence interval)", "CPU of the training thread")
    made = rows("overhead_gpu")
    cells = [(row["what"], _interval(row), _interval(row, "CPU ")) for row in made]
    machine = _measured_with("overhead_gpu").removesuffix(".")
    return f"{machine} and one {made[0]['GPU']}.\n\n{table(header, cells)}"


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
        (f"{row['ranks']:,}", row["what"], _spread(row), _percent(row["% of a round"]))
        for row in rows("join")
    ]
    header = ("ranks", "what", "median", "share of the time between rounds")
    return f"{_measured_with('join')}\n\n{table(header, cells)}"


def scrape() -> str:
    """Return the cost of an exporter, a row for each figure and a column per source of PCIe."""
    found = rows("scrape")
    names = [name for name in found[0] if name != "PCIe"]
    cells = [(name, *(short(row[name]) for row in found)) for name in names]
    header = ("", *(f"PCIe by {row['PCIe']}" for row in found))
    return f"{_measured_with('scrape')}\n\n{table(header, cells)}"


def _measured_with(name: str) -> str:
    machine = result(name)["machine"]
    versions = [f"{package} {machine[package]}" for package in machine if package != "cpus"]
    return f"Measured on {machine['cpus']} CPUs with {', '.join(versions)}."


def _spread(row: Row) -> str:
    median, low, high = (_number(row[name]) for name in ("median", "q1", "q3"))
    return f"{median} {row['unit']} (quartiles {low} to {high})"


def _interval(row: Row, clock: str = "") -> str:
    """Return a median with the interval it lies in; nothing if *clock* did not measure it."""
    median, low, high = (row[f"{clock}{name}"] for name in ("median", "95 % from", "95 % to"))
    if median is None:
        return ""
    told = f"{_number(median)} {row['unit']}"
    return told if low is None else f"{told} ({_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _percent(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.2g} %"


def _times(row: Row, ours: float) -> str:
    return f"{row['median'] / ours:.1f}" if row["what"].startswith(ADDED) else ""


def short(value: object) -> str:
    """Return a measurement in three digits, anything else as it is."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
