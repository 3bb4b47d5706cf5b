"""The tables of what the probe costs."""

from benchmarks.overhead.blocks import ADDED
from benchmarks.report import Row, digits, measured_with, percent
from generators.markdown import table

# These rows are the probe; the others are compared with it.
OURS = f"{ADDED}probe, automatic"
PUSH = "CPU of a push, one a second"
# The most that the probe may cost, in µs of wall time, and of CPU where the wall time includes
# waits for other ranks.
GOALS = {OURS: ("median", 10), PUSH: ("median", 300)} | {
    f"{OURS}, DDP, rank {rank}": ("CPU median", 15) for rank in (0, 1)
}


def overhead(result: Row) -> str:
    """Return what each tool adds to a step, beside what the probe adds, and the probe's moves."""
    ours = next(row["median"] for row in result["rows"] if row["what"] == OURS)
    cells = [
        (
            row["what"],
            _interval(row),
            _interval(row, "CPU "),
            percent(row["% of a 100 ms step"]),
            _times(row, ours),
        )
        for row in result["rows"]
    ]
    header = (
        "what",
        "median (95 % confidence interval)",
        "CPU of the training thread",
        "share of a 100 ms step",
        "times the probe, automatic",
    )
    return f"{measured_with(result)}\n{_beside_goals(result)}\n\n{table(header, cells)}"


def on_gpu(result: Row) -> str:
    """Return a step of the loop on a GPU, and what the probe adds to it."""
    header = ("what", "median (95 % confidence interval)", "CPU of the training thread")
    made = result["rows"]
    cells = [(row["what"], _interval(row), _interval(row, "CPU ")) for row in made]
    machine = measured_with(result).removesuffix(".")
    return f"{machine} and one {made[0]['GPU']}.\n\n{table(header, cells)}"


def _beside_goals(result: Row) -> str:
    found = {row["what"]: row for row in result["rows"]}
    return "\n".join(
        f"*{what}*: {found[what][kind]:.3g} µs{' of CPU' if kind != 'median' else ''}, "
        f"{'within' if found[what][kind] <= goal else '**over**'} the goal of {goal} µs."
        for what, (kind, goal) in GOALS.items()
        if what in found
    )


def _interval(row: Row, clock: str = "") -> str:
    """Return a median with the interval it lies in; nothing if *clock* did not measure it."""
    median, low, high = (row[f"{clock}{name}"] for name in ("median", "95 % from", "95 % to"))
    if median is None:
        return ""
    told = f"{digits(median)} {row['unit']}"
    return told if low is None else f"{told} ({digits(low)} to {digits(high)})"


def _times(row: Row, ours: float) -> str:
    return f"{row['median'] / ours:.1f}" if row["what"].startswith(ADDED) else ""
