"""The tables of measurements tell misses as loudly as hits, and make nothing up.

Each case is what the committed results need not have; those go through every table, too, in
test_build.py.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy.plan import Segment
from benchmarks.accuracy.score import score
from benchmarks.accuracy.trace import Truth
from benchmarks.torch_versions import JOIN, TESTS
from generators.measured import (
    accuracy,
    audit,
    collectives,
    compare,
    diagnose,
    late_lines,
    overhead,
    results,
    robustness,
    scale,
    torch_versions,
)

Row = dict[str, Any]

TRUTH = Truth(0.05, 1.25, 1.2, 0.26, 0.6, 0.5, None, 0.1, 3.0, None, 10.0)


def judged(fault: str, *ranks: int) -> Row:
    """What is said of a segment when *ranks* are named, in data."""
    names = {"kind": "persistent", "instance": None, "stage": "data"}
    times = {"onset_s": 121.0, "named_s": 150.0, "cleared_s": None, "gpus_lost": 0.5}
    job = {
        "findings": [names | times | {"rank": rank} for rank in ranks],
        "slowdown": 1.2,
        "gpus_lost_by_kind": {"persistent": 0.5},
        "source": "judge",
        "not_judgeable": [],
    }
    return score(Segment("ddp", 4, 1, fault, 0.25), TRUTH, job, 40.0) | {"judged": "abc"}


def fired(runs: int) -> Row:
    counts: Row = {"scrape, s": 15.0, "fault, %": 10.0, "runs": runs, "fired": runs, "wrong": 0}
    return counts | {"median, s": 23.54, "max, s": 40.0}


def planted(name: str, check: str | None, told: str | None, others: str | None = None) -> Row:
    found = None if check is None else "yes" if told else "NO"
    return {"planted": name, "check": check, "found": found, "as": told, "others found": others}


def compared(correlation: float, ratio: float, *shares: float) -> Row:
    names = ("refused", "interval holds the truth", "told worse")
    case: Row = {"steps": 300, "straggler": "none", "true ratio": ratio}
    return case | {"correlation": correlation} | dict(zip(names, shares, strict=True))


COMPARED: Row = {"fault": "data", "true ratio": 1.25, "ratio": 1.249, "late": "1 in data"}
COMPARED |= {"from": 1.24, "to": 1.26, "verdict": "worse"}
DIAGNOSED: Row = {"source": "simulate", "fault": "loader", "said": "rank 6", "wrong cause": False}
DIAGNOSED |= {part: True for part in diagnose.PARTS} | {"explains": 0.93}
TOLD: Row = {"planted": "sleep", "busy": False, "outcome": "right", "rank": "2", "after": 9.2}
TOLD |= {"cause": "code", "detail": "sleep", "sentence": "its thread is asleep"}
SILENT: Row = {"planted": "slow_worker", "busy": True, "outcome": "silent", "cause": ""}
WRONG: Row = TOLD | {"planted": "hog", "busy": True, "outcome": "wrong", "sentence": ""}
LINE: Row = {"slow line": "loss", "planted at": "job.py:9", "stage": "forward", "share": 0.584}
LINE |= {"first line": "loss_of (job.py:9)", "line shown after, s": 6.07}
SAMPLES: Row = {"samples on it": 400, "on the others": 0}
OLD: Row = {"torch": "2.4.1+cu121", "python": "3.11.7", "with": "", "right": 5, "of": 5}
OLD |= {"differs": ""}
NEW = OLD | {"torch": "2.15.0", "python": "3.14.10"}
UNITS: Row = {"unit": "µs", "% of a 100 ms step": None}
CPU = ("CPU median", "CPU 95 % from", "CPU 95 % to")
WALL: Row = UNITS | {"95 % from": 9.0, "95 % to": 10.0} | dict.fromkeys(CPU)
SCALE: Row = {"jobs": 1, "tree": "now", "CPU s of 15 without rules": 2.2, "RSS MiB": 2_048}
REFUSED: Row = {"what": "same", "failed": 60, "scrapes": 60, "ranks unheard": 0}
REFUSED |= {"new ranks refused": 60, "most open files": 214}
REFUSED |= dict.fromkeys(("p50 ms", "p99 ms", "longest ms"))


@pytest.mark.parametrize(
    ("render", "name", "rows", "told"),
    [
        (
            accuracy.faults,
            "accuracy",
            [judged("data", 0), judged("none")],
            [
                "2 of 2 runs were judged correctly",
                "| 25 % | 1 | 1 | 1 | 1 | 1 | 1 | 0 | 30 | 0.0% | 0.0% |",
                "Nothing was missed.",
            ],
        ),
        (
            accuracy.faults,
            "accuracy",
            [judged("data", 3), judged("forward"), judged("none", 2)],
            [
                "0 of 3 runs were judged correctly",
                "| 25 % | 2 | 2 | **0** |",
                "| ddp, 4 ranks, seed 1 | data | 26.0% | nobody | persistent rank 3",
                "| ddp, 4 ranks, seed 1 | forward | 26.0% | nobody |  |",
                "| none | ddp | 4 | 1 | **1** |",
            ],
        ),
        (
            accuracy.together,
            "accuracy",
            [judged("data", 0), judged("load"), judged("set", 1), judged("load", 2)],
            [
                "1 of 3 runs were judged correctly",
                "| set | 25 % | ddp | 4 | 1 | 1 | 1 | 1 | **0** | 1 | **0** | 0 | 30 |",
                "| load | 25 % | ddp | 4 | 2 | 0 |  |  |  |  |  | **1** |  |",
                "| ddp, 4 ranks, seed 1 | load | 26.0% |  | persistent rank 2",
            ],
        ),
        (accuracy.latency, "latency", [fired(1)], ["| s |\n", "| 23.5 |"]),
        (accuracy.latency, "latency", [fired(3)], ["| median, s | max, s |\n", "| 23.5 | 40 |"]),
        (
            audit.plants,
            "audit",
            [
                planted("nothing", None, None, others="mtu"),
                planted("a", "numa", "fail"),
                planted("b", "cpus", None),
            ],
            [
                "1 of 2 were found; in 2 of 3 launches nothing else was.",
                "| nothing |  |  | mtu |",
                "| a | `numa` | fail | nothing |",
                "| b | `cpus` | not found | nothing |",
            ],
        ),
        (
            collectives.links,
            "collectives",
            [{"part": "links", "case": "link 1-3", "runs": 5, "right": 4, "named": "it"}],
            ["| link 1-3 | 4 of 5 | it |"],
        ),
        (
            compare.coverage,
            "compare_coverage",
            [
                compared(0.0, 1.0, 0.01, 0.96, 0.02),
                compared(0.8, 1.0, 0.06, 0.941, 0.025),
                compared(0.8, 1.05, 0.05, 0.95, 0.81),
            ],
            ["| 300 | none | 1% to 6% | 94.1% or more | 2.5% or less | 81% to 81% |"],
        ),
        (
            compare.planted,
            "compare_planted",
            [
                COMPARED,
                COMPARED | {"fault": "none", "ratio": None, "verdict": "cannot_tell", "late": ""},
            ],
            [
                "| one rank late in data | 1.250 | 1.249 | 1.240 to 1.260 | worse | 1 in data |",
                "| none | 1.250 |  |  | cannot tell |  |",
            ],
        ),
        (
            diagnose.faults,
            "diagnose",
            [
                DIAGNOSED,
                DIAGNOSED | {"fault": "gc", "cause": False, "wrong cause": True},
                DIAGNOSED | {"fault": "healthy", "rank": None, "explains": None},
                DIAGNOSED | {"source": "trace", "fault": "of the other table"},
            ],
            [
                "All right in 2 of 3; a wrong cause in 1, also ",
                "| loader | rank 6 | right | right | right | right | right | 93% |",
                "| gc | rank 6 | right | right | **wrong** |",
                "| healthy | rank 6 |  | right | right | right | right |  |",
            ],
        ),
        (
            diagnose.planted,
            "causes",
            [TOLD, TOLD | {"after": 11.2, "sentence": "it sleeps"}, SILENT, WRONG],
            [
                "The first cause is right in 2 of 2 and wrong in 0; with all CPUs busy, the first "
                "cause is right in 0 of 2 and wrong in 1.\n",
                "| sleep | rank 2: code (sleep): its thread is asleep | 10 s | 2 right |",
                "| slow worker, all CPUs busy | nothing |  | 1 silent |",
                "| hog, all CPUs busy | rank 2: code (sleep) | 9 s | 1 **wrong** |",
            ],
        ),
        (
            late_lines.lines,
            "late_lines",
            [LINE | SAMPLES, dict.fromkeys(LINE) | SAMPLES | {"slow line": "none"}],
            [
                "| loss | job.py:9 | forward | loss_of (job.py:9) | 58% | 6.1 | 400 | 0 |",
                "| none |  |  | none |  |  | 400 | 0 |",
            ],
        ),
        (
            late_lines.cost,
            "late_lines_cost",
            [
                {"what": "longer", "measured": 0.123, "standard error": 0.05, "most allowed": 0.5},
                {"what": "taken", "measured": 2_400, "standard error": None, "most allowed": None},
            ],
            ["| longer | 0.123 | 0.05 | 0.5 |", "| taken | 2,400 |  |  |"],
        ),
        (
            overhead.overhead,
            "overhead",
            [
                WALL | {"what": overhead.OURS, "median": 9.5},
                WALL | {"what": overhead.PUSH, "median": 337.0, "CPU median": 8.5},
                WALL | {"what": f"{overhead.OURS}, DDP, rank 1", "median": 99, "CPU median": 14},
            ],
            [
                f"*{overhead.OURS}*: 9.5 µs, within the goal of 10 µs.",
                f"*{overhead.PUSH}*: 337 µs, **over** the goal of 300 µs.",
                f"*{overhead.OURS}, DDP, rank 1*: 14 µs of CPU, within the goal of 15 µs.",
                f"| {overhead.OURS} | 9.5 µs (9 to 10) |  |",
                f"| {overhead.PUSH} | 337 µs (9 to 10) | 8.5 µs |",
            ],
        ),
        (
            robustness.measured,
            "restarts",
            [
                {"what": "pushes", "measured": 384_000, "most allowed": None},
                {"what": "back after, s", "measured": 0.12345, "most allowed": 5.0},
            ],
            ["| pushes | 384,000 |  |", "| back after, s | 0.123 | 5 |"],
        ),
        (
            robustness.slow_clients,
            "slow_clients",
            [REFUSED],
            ["| same | 60 of 60 | none (p99 none, longest none) ms | 0 | 60 of 60 | 214 |"],
        ),
        (
            scale.outcome,
            "scale",
            [
                SCALE | {"ranks": 4096, "rules CPU s of 15": 1.48, "missed": 0},
                SCALE | {"ranks": 16384, "rules CPU s of 15": 29.1, "missed": 2},
                SCALE | {"ranks": 16384, "tree": "before"},
            ],
            [
                "4,096 ranks the rules take 1.5 CPU seconds of 15 (within the goal of 1.5)",
                "scraping 2.2 (within the goal of 2.5), and Prometheus 2.0 GiB",
                "no evaluation was missed.",
                "29.1 CPU seconds of 15 (**over** the goal of 1.5)",
                "2 evaluations were missed.",
            ],
        ),
        (
            torch_versions.versions,
            "torch_versions",
            [
                OLD | {"what": JOIN, "right": 3, "of": 4, "differs": "nobody"},
                OLD | {"what": "DDP"},
                OLD | {"what": "Ray Train", "right": 0, "differs": "no ray", "with": "ray 2"},
                NEW | {"what": JOIN},
                NEW
                | {"what": TESTS, "right": 9, "of": 10, "differs": "test_a", "torch": "2.15.0+cpu"},
            ],
            [
                "| 2.4.1 | 3.11.7 | **5** of 10 | **no** | not run | verdict of the join: nobody; "
                "Ray Train (ray 2): no ray |",
                "| yes | **9** of 10 | tests of the probe: test_a; not run: DDP, Ray Train |",
            ],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_table_tells_what_was_measured(
    render: Callable[..., str],
    name: str,
    rows: list[Row],
    told: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was missed stands out, what has no limit or was not measured is left empty."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    machine = {"cpus": 2, "torch": "2"}
    (tmp_path / f"{name}.json").write_text(json.dumps({"machine": machine, "rows": rows}))
    text = render(name) if render is robustness.measured else render()

    assert [part for part in told if part not in text] == []
