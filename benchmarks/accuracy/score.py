"""Scores the findings of a replay against the planted fault, and makes the tables."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from benchmarks.accuracy.plan import CHANGE, DUTY, FAINT, HEALTHY, JOIN, SINGLE, Segment
from benchmarks.accuracy.trace import Truth
from benchmarks.report import Row, written
from generators.markdown import table
from rank_probe.judge.verdict import MOST_LATE

Finding = Mapping[str, Any]

# The columns of the tables.
SHOWN = (
    *("cells", "to find", "found", "rank", "stage", "kind"),
    *("false alarms", "onset s", "slowdown error", "loss error"),
)
FORMATS = {"onset s": ".0f", "slowdown error": ".1%", "loss error": ".1%"}
# These accuse somebody; other findings may be true next to a planted fault.
NAMING: Final = ("persistent", "pauses", "mild", "node", "rotating", "group")
# A rank that is late now and then may be reported as any of these, even if it saves a checkpoint.
RIGHT_KINDS: Final = {"persistent": ("persistent", "pauses", "duty")}
# What is counted of the runs that have something to find.
NAMED: Final = ("found", "rank", "stage", "kind", "all found")
SHOWN_TOGETHER: Final = ("cells", "to find", *NAMED, "false alarms", "onset s")
# A duty has this severity, whatever it costs. The onset of a change may be off by this much.
INFO: Final = "info"
ONSET_SECONDS: Final = 60.0
# From these shares on, the shipped rules must report a loss without a culprit. Below them they may,
# but a loss to ranks in turn only from ROTATING_TOLD on.
COMMON_SHARE: Final = 0.25
ROTATING_SHARE: Final = 0.1
ROTATING_TOLD: Final = 0.03
# A process beside a rank may cost it nothing, whatever its niceness: then no rank is late.
EFFECT: Final = 0.02


def score(segment: Segment, truth: Truth, job: Mapping[str, Any], scale: float) -> Row:
    """Return the row of one segment: what was planted, what was found, and whether it is right.

    *job* is one of the jobs in the output of `rankskew replay --json`. Its findings are taken in
    the order in which they were named, at equal times the costliest first. *onset s* is the time
    from the start of the fault to the first right finding, *onset error s* to the onset that it
    reports. None: does not apply; a slowdown is estimated only if a rank is late for long.
    """
    begin = truth.begin_seconds * scale
    findings = sorted(
        job["findings"], key=lambda each: (each["named_s"], -(each["gpus_lost"] or 0))
    )
    right = [each for each in findings if _right(segment, each, begin)]
    kinds = [each for each in findings if _kind_right(segment, each, begin)]
    first = kinds[0] if kinds else None
    # A rotating loss below its threshold shows on the dashboards, and should not alert.
    planted = segment.kind is not None and (
        truth.gpus_lost >= ROTATING_SHARE * segment.ranks
        if segment.kind == "rotating"
        else segment.kind == DUTY or truth.size >= EFFECT
    )
    said = sorted({_short(each) for each in findings if each not in right})
    wrong = [each for each in findings if is_false(segment, truth, each, begin)]
    return {
        "key": segment.key,
        "way": segment.way,
        "ranks": segment.ranks,
        "seed": segment.seed,
        "fault": segment.fault,
        "size": segment.size,
        "truth": truth.to_json(),
        "time scale": scale,
        "found": bool(right) if planted else None,
        "rank": first is not None and _rank_right(segment, first) if planted else None,
        "stage": first is not None and _stage_right(segment, first) if planted else None,
        "kind": bool(kinds) if planted else None,
        "all found": _all_found(segment, right) if planted else None,
        "false alarms": len(wrong),
        "onset s": right[0]["named_s"] - begin if right else None,
        "onset error s": right[0]["onset_s"] - begin if right else None,
        "cleared s": _cleared(truth, right, scale),
        "slowdown error": _error(job["slowdown"], truth.slowdown_run)
        if segment.late() and segment.kind != CHANGE
        else None,
        "loss error": _error(_lost(job), truth.gpus_lost_run),
        "said": [_short(each) for each in right],
        "false": [_short(each) for each in wrong],
        "also said": [each for each in said if each not in {_short(one) for one in wrong}],
        "source": job["source"],
        "not judgeable": job["not_judgeable"],
    }


def is_false(segment: Segment, truth: Truth, finding: Finding, begin: float) -> bool:
    """Return whether *finding* is a false alarm: it names another rank, or is not true.

    A loss to the network, or to a different rank in each step, is no false alarm if the trace
    confirms it: COMMON_SHARE of the step, or ROTATING_TOLD of the GPUs. A rank that is always late
    may be `mild` before it pages, and any rank may be `mild` if ranks differ permanently. If all
    ranks are slower, no rank may be named; if most are, none of the others.
    """
    kind = finding["kind"]
    if _right(segment, finding, begin):
        return False
    if kind == "common":
        return truth.common < COMMON_SHARE
    if kind == "rotating" and segment.kind in (None, "rotating"):
        return truth.gpus_lost_run < ROTATING_TOLD * segment.ranks
    if kind == "mild" and segment.fault == "spread":
        return False
    if kind == "mild" and segment.kind == "persistent":
        return not _right(segment, {**finding, "kind": "persistent"}, begin)
    late = {rank for rank, _ in segment.late()}
    if segment.kind == CHANGE and kind in NAMING and len(late) < segment.ranks:
        return not late.issuperset(finding["ranks"] or [finding["rank"]])
    if kind == CHANGE:
        return True
    return kind in NAMING or segment.kind is None or finding["rank"] not in (None, *late)


def _right(segment: Segment, finding: Finding, begin: float) -> bool:
    if not (_kind_right(segment, finding, begin) and _rank_right(segment, finding)):
        return False
    if segment.kind == DUTY:
        return bool(finding["severity"] == INFO)
    if segment.kind == CHANGE:
        is_then = abs(finding["onset_s"] - begin) <= ONSET_SECONDS
        return is_then and _stage_right(segment, finding)
    return True


def _kind_right(segment: Segment, finding: Finding, begin: float) -> bool:
    right = RIGHT_KINDS.get(segment.kind or "", (segment.kind,))
    if segment.size == FAINT:
        right = (*right, "mild")
    return finding["kind"] in right and finding["named_s"] >= begin


def _rank_right(segment: Segment, finding: Finding) -> bool:
    if segment.kind == "node":
        nodes = {f"node{segment.node(rank)}" for rank, _ in segment.late()}
        return str(finding["instance"]).split(":")[0] in nodes
    if segment.kind == "rotating":
        return True
    if segment.kind == CHANGE:  # A change of the whole job has no ranks.
        late = sorted(rank for rank, _ in segment.late())
        return list(finding["slower_ranks"]) == (
            late[:MOST_LATE] if len(late) < segment.ranks else []
        )
    return finding["rank"] in {rank for rank, _ in segment.late()}


def _stage_right(segment: Segment, finding: Finding) -> bool:
    if segment.kind == "persistent":
        return (finding["rank"], finding["stage"]) in segment.late()
    return bool(finding["stage"] == segment.stage)


def _all_found(segment: Segment, right: Sequence[Finding]) -> bool:
    if segment.kind != "persistent":
        return bool(right)
    return {each["rank"] for each in right} == {rank for rank, _ in segment.late()}


def _cleared(truth: Truth, right: Sequence[Finding], scale: float) -> float | None:
    """Return how long after its end the fault was still reported, None if it did not end."""
    if truth.end_seconds is None or not right or any(one["cleared_s"] is None for one in right):
        return None
    latest: float = max(one["cleared_s"] for one in right)
    return latest - truth.end_seconds * scale


def _lost(job: Mapping[str, Any]) -> float:
    """Return the GPUs lost to ranks, without the waits for the network that all share."""
    kinds: Mapping[str, float] = job["gpus_lost_by_kind"]
    return sum(gpus for kind, gpus in kinds.items() if kind != "common")


def _error(said: float | None, true: float) -> float | None:
    return None if said is None else float(said / true - 1)


def _short(finding: Finding) -> str:
    where = [f"rank {finding['rank']}"] if finding["rank"] is not None else []
    where += [str(finding[name]) for name in ("instance", "stage") if finding[name]]
    lost = "" if finding["gpus_lost"] is None else f", {finding['gpus_lost']:.2f} GPUs"
    until = "" if finding["cleared_s"] is None else f" to {finding['cleared_s']:.0f}"
    since = f"{finding['onset_s']:.0f}{until} s, named at {finding['named_s']:.0f} s"
    return f"{' '.join([finding['kind'], *where])}: {since}{lost}"


def summary(rows: Iterable[Row], by: Sequence[str]) -> list[Row]:
    """Return one row for each combination of the columns *by*: counts of cells, and medians.

    *slowdown error* and *loss error* are the medians of the absolute values.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    return [{**dict(zip(by, key, strict=True)), **_of(group)} for key, group in groups.items()]


def _of(group: Sequence[Row]) -> Row:
    shares = {name: [row[name] for row in group] for name in NAMED}
    return {
        "cells": len(group),
        "to find": sum(row["found"] is not None for row in group),
        **{name: _count(values) for name, values in shares.items()},
        "false alarms": sum(row["false alarms"] for row in group),
        "onset s": _median([row["onset s"] for row in group]),
        "slowdown error": _median([_absolute(row["slowdown error"]) for row in group]),
        "loss error": _median([_absolute(row["loss error"]) for row in group]),
    }


def _count(values: Sequence[bool | None]) -> int | None:
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def _absolute(value: float | None) -> float | None:
    return None if value is None else abs(value)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def is_miss(row: Row) -> bool:
    """Return whether something in *row* is not as it should be."""
    return bool(row["false alarms"]) or False in (
        row[name] for name in ("found", "rank", "stage", "kind", "all found")
    )


def faults_table(result: Row) -> str:
    """Return the judge's results on planted faults, by size and by fault, and every miss."""
    runs = [row for row in result["rows"] if _is_single(row)]
    healthy = [row for row in runs if row["fault"] in HEALTHY]
    planted = [row for row in runs if row not in healthy]
    parts = [
        _headline(result["machine"], runs),
        _table(planted, ("size",), SHOWN),
        _table(planted, ("fault", "way"), SHOWN),
        _table(healthy, ("fault", "way", "ranks"), ("cells", "false alarms")),
        _missed([row for row in runs if is_miss(row)]),
    ]
    return "\n\n".join(part for part in parts if part)


def together_table(result: Row) -> str:
    """Return the same for faint faults, many late ranks at once, duties, and simulated ranks."""
    runs = [row for row in result["rows"] if not _is_single(row)]
    simulated = [row for row in runs if row["way"] == JOIN]
    real = [row for row in runs if row["way"] != JOIN]
    by = ("fault", "size", "way", "ranks")
    parts = [
        _headline(result["machine"], runs),
        _table([row for row in real if row["size"] == FAINT], by, SHOWN_TOGETHER),
        _table([row for row in real if row["size"] != FAINT], by, SHOWN_TOGETHER),
        _table(simulated, by, SHOWN_TOGETHER),
        _missed([row for row in runs if is_miss(row)]),
    ]
    return "\n\n".join(part for part in parts if part)


def _is_single(row: Row) -> bool:
    """Return whether *row* has a fault of a single rank, or is one of the healthy runs beside."""
    return row["fault"] in SINGLE and row["size"] != FAINT and row["way"] != JOIN


def _headline(machine: Row, runs: Sequence[Row]) -> str:
    right = sum(not is_miss(row) for row in runs)
    commits = ", ".join(f"`{name}`" for name in sorted({row["judged"] for row in runs}))
    return (
        f"{right} of {len(runs)} runs were judged correctly on {machine['cpus']} CPUs with torch "
        f"{machine['torch']}, judged by commit {commits}."
    )


def _table(found: Sequence[Row], by: tuple[str, ...], shown: tuple[str, ...]) -> str:
    if not found:
        return ""
    ordered = sorted(found, key=lambda row: tuple(row[name] for name in by))
    cells = [
        (
            *(_named(name, row[name]) for name in by),
            *(_shown(name, row[name], row["to find"]) for name in shown),
        )
        for row in summary(ordered, by)
    ]
    return table((*by, *("runs" if name == "cells" else name for name in shown)), cells)


def _named(name: str, value: Any) -> str:
    return f"{value * 100:g} %" if name == "size" else str(value)


def _shown(name: str, value: Any, to_find: int) -> str:
    """Return the figure *name*; what was missed is in bold."""
    bad = value if name == "false alarms" else name in NAMED and value not in (None, to_find)
    return f"**{value}**" if bad else written(value, FORMATS.get(name, "d"))


def _missed(found: Sequence[Row]) -> str:
    if not found:
        return "Nothing was missed."
    cells = [
        (
            f"{row['way']}, {row['ranks']} ranks, seed {row['seed']}",
            row["fault"],
            f"{row['truth']['size']:.1%}",
            "; ".join(row["said"]) or ("" if row["found"] is None else "nobody"),
            "; ".join(row["false"]),
        )
        for row in found
    ]
    header = ("run", "fault", "measured size", "right findings", "wrong findings")
    return f"Misses:\n\n{table(header, cells)}"
