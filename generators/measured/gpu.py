"""The tables of docs/gpu.md and docs/hardware.md: what was seen on a real GPU."""

from benchmarks.gpu_check.figures import WITHIN
from generators.markdown import table
from generators.measured.results import Row, number, result, rows

RUNS = ("plain", "late peer", "slow backward", "late loader", "hidden loader", "graphed callables")
STAGES = ("forward", "backward", "sync", "optimizer")
WRAPS = ("torch.compile", "torch.compile, CUDA graphs", "FSDP2")
MOST_WORDS = 10
PARTS = ("forward, backward and sync", "optimizer")


def stages() -> str:
    """Return, for each run and stage, torch.profiler's ms and the device clock's."""
    found = {row["check"]: row for row in rows("gpu_check")}
    cells = [(run, *(_pair(found.get(f"{run}: {stage}")) for stage in STAGES)) for run in RUNS]
    return f"{_machine('gpu_check')}\n\n{table(('run', *STAGES), cells)}"


def _pair(row: Row | None) -> str:
    return "" if row is None else f"{row['expected']:.1f}, {row['found']:.1f}"


def wraps() -> str:
    """Return torch.profiler's ms and the device clock's for each way to wrap the model that ran."""
    found = {row["check"]: row for row in rows("gpu_check")}
    cells = [
        (wrap, *(_pair(found.get(f"{wrap}: {stage}")) for stage in PARTS))
        for wrap in WRAPS
        if f"{wrap}: optimizer" in found
    ]
    return table(("model", *PARTS), cells)


def verdict() -> str:
    """Return how many checks passed, and the figures of those that did not."""
    made = rows("gpu_check")
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


def ranks() -> str:
    """Return what the page said of ranks that share a GPU."""
    header = ("GPU", "model", "planted", "named", "after s", "page")
    cells = [
        tuple(number(row[name]) if name == "after s" else row[name] for name in header)
        for row in rows("gpu_ranks")
    ]
    return table(header, cells)


def readings() -> str:
    """Return the exporter's means beside nvidia-smi's, in nvidia-smi's units."""
    cells = [
        (f"`{row['reading']}`", _short(row["ours"]), _short(row["nvidia-smi"]))
        for row in rows("gpu_readings")
    ]
    return f"{_machine('gpu_readings')}\n\n{table(('reading', 'exporter', 'nvidia-smi'), cells)}"


def _short(value: float) -> str:
    """Return three digits, or all before the point."""
    return format(value, ",.0f" if value >= 100 else ".3g")


def _machine(name: str) -> str:
    """Return on what the result *name* was measured."""
    machine = result(name)["machine"]
    return f"On one {machine['GPU']}, {machine['cpus']} CPUs, torch {machine['torch']}."
