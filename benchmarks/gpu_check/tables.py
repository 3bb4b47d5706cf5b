"""The tables of docs/hardware.md: what was seen on a real GPU."""

from benchmarks.gpu_check.figures import WITHIN
from benchmarks.report import Row, number
from generators.markdown import table

RUNS = ("plain", "late peer", "slow backward", "late loader", "hidden loader", "graphed callables")
STAGES = ("forward", "backward", "sync", "optimizer")
WRAPS = ("torch.compile", "torch.compile, CUDA graphs", "FSDP2")
MOST_WORDS = 10
PARTS = ("forward, backward and sync", "optimizer")


def stages(result: Row) -> str:
    """Return, for each run and stage, torch.profiler's ms and the device clock's."""
    found = {row["check"]: row for row in result["rows"]}
    cells = [(run, *(_pair(found.get(f"{run}: {stage}")) for stage in STAGES)) for run in RUNS]
    return f"{_machine(result)}\n\n{table(('run', *STAGES), cells)}"


def _pair(row: Row | None) -> str:
    return "" if row is None else f"{row['expected']:.1f}, {row['found']:.1f}"


def wraps(result: Row) -> str:
    """Return torch.profiler's ms and the device clock's for each way to wrap the model that ran."""
    found = {row["check"]: row for row in result["rows"]}
    cells = [
        (wrap, *(_pair(found.get(f"{wrap}: {stage}")) for stage in PARTS))
        for wrap in WRAPS
        if f"{wrap}: optimizer" in found
    ]
    return table(("model", *PARTS), cells)


def verdict(result: Row) -> str:
    """Return how many checks passed, and the figures of those that did not."""
    made = result["rows"]
    missed = [row for row in made if row["passed"] != "yes"]
    told = [_missed(row) for row in missed]
    text = f"{len(made) - len(missed)} of {len(made)} checks passed, to {WITHIN * 100:.0f} %."
    return f"{text}\nNot passed: {'; '.join(told)}." if told else text


def _missed(row: Row) -> str:
    if row["found"] is None:  # An error of torch, of which the first words say enough.
        return f"{' '.join(row['check'].split()[:MOST_WORDS])} ..."
    found, unit = number(row["found"]), row["unit"]
    if row["expected"] is None:
        return f"{row['check']}: {found} {unit} instead of at most {number(row['off by at most'])}"
    return f"{row['check']}: {found} {unit} instead of {number(row['expected'])}"


def ranks(result: Row) -> str:
    """Return what the page said of ranks that share a GPU."""
    header = ("GPU", "model", "planted", "named", "after s", "page")
    cells = [
        tuple(number(row[name]) if name == "after s" else row[name] for name in header)
        for row in result["rows"]
    ]
    return table(header, cells)


def readings(result: Row) -> str:
    """Return the exporter's means beside nvidia-smi's, in nvidia-smi's units."""
    cells = [
        (f"`{row['reading']}`", _short(row["ours"]), _short(row["nvidia-smi"]))
        for row in result["rows"]
    ]
    return f"{_machine(result)}\n\n{table(('reading', 'exporter', 'nvidia-smi'), cells)}"


def _short(value: float) -> str:
    """Return three digits, or all before the point."""
    return format(value, ",.0f" if value >= 100 else ".3g")


def _machine(result: Row) -> str:
    """Return on what *result* was measured."""
    machine = result["machine"]
    return f"On one {machine['GPU']}, {machine['cpus']} CPUs, torch {machine['torch']}."
