"""`rankskew compare` on real training with a planted change: is the ratio right?

Real gloo ranks train as in benchmarks.accuracy: first all of them are healthy, then one is late by
a share of a step, so each step takes longer by that share. The delays that took effect are known.
Other work on the machine changes the step time too, so run this on an idle one.
"""

from argparse import ArgumentParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.accuracy.plan import Segment
from benchmarks.accuracy.record import record
from benchmarks.accuracy.trace import WARM_STEPS, recorded_truth
from benchmarks.report import RESULTS, write
from rankskew.compare.choose import compare_traces
from rankskew.compare.report import as_text
from rankskew.replay.traces import read_traces

# Steps of about 70 ms before and after the change.
STEPS: Final = 300
FAULTS: Final = (
    ("none", 0.0),
    ("data", 0.05),
    ("data", 0.25),
    ("backward", 0.1),
    ("optimizer", 0.5),
    ("rotating", 0.25),
)
# The report on this one, as if the rank had been mended, is the sample in docs/compare.md.
SAMPLED: Final = ("data", 0.25)
SAMPLE: Final = RESULTS / "compare_sample.txt"


def segments(ranks: int, seed: int) -> list[Segment]:
    """Return a segment for each fault."""
    return [
        Segment("ddp", ranks, seed, fault, size, WARM_STEPS + STEPS, STEPS)
        for fault, size in FAULTS
    ]


def row(segment: Segment, traces: Path) -> dict[str, Any]:
    """Return what the comparison says of a recorded *segment*, and what is true."""
    path = traces / f"{segment.key}.csv"
    change = segment.healthy_steps
    # A delay in the optimizer is in the row after that of its step.
    asked = f"{WARM_STEPS}-{change - 1}..{change + 1}-{segment.steps - 1}"
    found = compare_traces(read_traces([path]), asked, STEPS)
    ratio = found.cost.ratio if found.cost else None
    return {
        "fault": segment.fault,
        "seed": segment.seed,
        "true ratio": 1 + recorded_truth(segment, traces).size,
        "ratio": ratio.value if ratio else None,
        "from": ratio.low if ratio else None,
        "to": ratio.high if ratio else None,
        "verdict": found.verdict,
        "late": ", ".join(f"{one.rank} in {one.stage}" for one in found.late or () if one.after),
        "why": found.why,
    }


def sample(segment: Segment, traces: Path) -> str:
    """Return the command and the report on a *segment* that is read backwards: a rank is mended."""
    runs = read_traces([traces / f"{segment.key}.csv"])
    change = segment.healthy_steps
    asked = f"{change + 1}-{segment.steps - 1}..{WARM_STEPS}-{change - 1}"
    said = as_text(compare_traces(runs, asked, STEPS))
    return f"$ rankskew compare {asked} --trace {segment.key}.csv\n{said}\n"


def main() -> None:
    """Train, compare and write the table."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("--ranks", type=int, default=4)
    options.add_argument("--seeds", type=int, default=2, help="how many times each change is made")
    options.add_argument("--traces", type=Path, help="keep the recorded traces here")
    chosen = options.parse_args()
    rows = []
    with TemporaryDirectory() as name:
        traces = chosen.traces or Path(name)
        traces.mkdir(parents=True, exist_ok=True)
        for seed in range(1, chosen.seeds + 1):
            those = segments(chosen.ranks, seed)
            record(those, traces)
            rows += [row(segment, traces) for segment in those]
            sampled = next(one for one in those if (one.fault, one.size) == SAMPLED)
            SAMPLE.write_text(sample(sampled, traces))
    write("compare_planted", rows, ["torch"])


if __name__ == "__main__":
    main()
