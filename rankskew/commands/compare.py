"""`rankskew compare`: what a change did to a job, with an interval."""

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from exporter.commands.arguments import Parser, add_json, interval
from exporter.errors import UsageError
from exporter.vocabulary.words import slow_at
from rank_probe.wire.document import as_document
from rankskew.client.fetch import Trouble, base_url
from rankskew.client.prometheus import Prometheus
from rankskew.commands.servers import access, add_access
from rankskew.compare.choose import compare_recorded, compare_traces
from rankskew.compare.comparison import (
    CANNOT_TELL,
    EXIT_STATUS,
    NO_WORSE,
    NO_WORSE_RATIO,
    Comparison,
    LateChange,
    LateRankCost,
    QuantityChange,
)
from rankskew.compare.statistics import Interval
from rankskew.render import Document, Section, render
from rankskew.replay.traces import read_traces

EXAMPLES: Final = """\
rankskew compare 14:05..14:20 --prometheus http://prometheus:9090 --job llama
rankskew compare 13:50/14:05..14:20/14:40 --prometheus http://prometheus:9090
rankskew compare job:llama-1..job:llama-2 --prometheus http://prometheus:9090
rankskew compare 100-400..500-900 --trace /scratch/trace"""
COLUMNS: Final = ("", ">before", ">after", ">after / before (95 % interval)")
# Stages that take less of a step are not listed.
SMALLEST_STAGE: Final = 0.005

Row = tuple[str, str, str, str]


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew compare",
        description="Say what a change between A and B did: how much longer or shorter steps take "
        "since, with a 95 % interval, and whether that is certain. Exit status: 0 better or no "
        "worse, 1 worse, 2 cannot tell.",
        examples=EXAMPLES,
    )
    # So that -40m..-10m is no option.
    options._negative_number_matcher = re.compile(r"-\d")
    options.add_argument(
        "sides",
        metavar="A..B",
        help="two times such as 14:05..14:20 (UTC) or -40m..-10m, periods "
        "13:50/14:05..14:20/14:40, or job:OLD..job:NEW; with --trace times of the run, 10m..12m, "
        "or ranges of steps, 100-400..500-900",
    )
    source = options.add_mutually_exclusive_group(required=True)
    source.add_argument("--prometheus", metavar="URL", help="ask this Prometheus")
    source.add_argument("--trace", metavar="DIR", type=Path, help="compare in this recorded trace")
    options.add_argument("--cluster", help="only this cluster of the Prometheus")
    options.add_argument("--job", metavar="JOB_ID", help="this job; not needed if there is one")
    options.add_argument(
        "--window",
        metavar="DURATION",
        type=interval,
        default="10m",
        help="how long before A and after B is compared (default: %(default)s)",
    )
    formats = options.add_mutually_exclusive_group()
    add_json(formats, "the verdict and all figures; docs/compare.md describes it")
    formats.add_argument("--markdown", action="store_true", help="print Markdown, for a ticket")
    add_access(options)
    return options


def run(arguments: Sequence[str]) -> int:
    """Print a comparison; returns 0 if it is better or no worse, 1 if worse, 2 if unknown."""
    options = parser().parse_args(arguments)
    if options.trace is not None and options.cluster is not None:
        raise UsageError("--cluster needs --prometheus: a trace knows no clusters")
    try:
        found = _compared(options)
    except Trouble as trouble:
        found = Comparison(CANNOT_TELL, str(trouble))
        print(f"rankskew: {trouble}", file=sys.stderr)
        if not options.json:
            return EXIT_STATUS[CANNOT_TELL]
    if options.json:
        print(as_document("compare", asdict(found)))
    else:
        print(render(comparison_document(found), markdown=options.markdown))
    return EXIT_STATUS[found.verdict]


def _compared(options: argparse.Namespace) -> Comparison:
    if options.trace is not None:
        runs = read_traces([options.trace])
        return compare_traces(runs, options.sides, options.window, options.job)
    prometheus = Prometheus(base_url(options.prometheus), access=access(options))
    return compare_recorded(
        prometheus, options.sides, options.window, time.time(), options.job, options.cluster
    )


# ---- In words ----------------------------------------------------------------------------------


def comparison_document(found: Comparison) -> Document:
    """Return *found* in words."""
    sections = []
    if rows := list(_rows(found)):
        sections.append(Section("Before and after", names=COLUMNS, rows=rows))
    if late := list(_late(found)):
        sections.append(Section("Late ranks", late))
    return Document(_heading(found), list(_sentences(found)), sections)


# ---- Sentences ---------------------------------------------------------------------------------


def _heading(found: Comparison) -> str:
    names = dict.fromkeys(side.job_id for side in (found.before, found.after) if side)
    return f"job{'s' * (len(names) > 1)} {' and '.join(names)}: {found.verdict.replace('_', ' ')}"


def _sentences(found: Comparison) -> Iterator[str]:
    if found.cost is not None and found.cost.ratio is not None:
        name, ratio = found.cost.name, found.cost.ratio
        so_what = ""
        if found.verdict == NO_WORSE:
            loss = f"a loss of {NO_WORSE_RATIO - 1:.0%} or more"
            so_what = f": no change is certain, and {loss} is ruled out"
        if name == "step":
            yield f"Steps take {_times(ratio, 'as long')}{so_what}."
        else:
            gain = _times(ratio.inverse, f"as many {name} a second")
            yield f"A GPU trains {gain}{so_what}."
    if found.why is not None:
        yield found.why
    yield from found.notes


def _times(ratio: Interval, what: str) -> str:
    value, low, high = _numbers(ratio)
    return f"{value} times {what} as before (95 % interval {low} to {high})"


def _late(found: Comparison) -> Iterator[str]:
    if found.cost is None:
        return
    if found.late is None:
        yield "Late ranks cannot be compared: nobody judged the job on both sides."
        return
    for one in found.late:
        yield f"Rank {one.rank}, slow {slow_at(one.stage)}: {_fate(one)}."
    if not found.late:
        yield "No rank was late on either side."


def _fate(one: LateChange) -> str:
    if one.before is None:
        return f"not late before, {_gpus(one.after)} after"
    if one.after is None:
        return f"{_gpus(one.before)} before, no longer late"
    return f"{_gpus(one.before)} before, {_gpus(one.after)} after"


def _gpus(late: LateRankCost | None) -> str:
    if late is None or late.gpus_lost is None:
        return "late at an unknown cost"
    return f"{late.gpus_lost:.2f} GPUs lost"


# ---- The table ---------------------------------------------------------------------------------


def _rows(found: Comparison) -> Iterator[Row]:
    before, after = found.before, found.after
    if found.step is None or before is None or after is None:
        return
    yield "steps", f"{before.steps:,.0f}", f"{after.steps:,.0f}", ""
    yield _ratio_row("step", found.step, _seconds)
    if found.step_without_rare is not None:
        yield _ratio_row("without checkpoint, eval", found.step_without_rare, _seconds)
    for rate in found.rates:
        yield _ratio_row(f"{rate.name} a second", rate, _amount)
    for lost in found.gpus_lost:
        name = "GPUs lost" if lost.name == "total" else f"  {lost.name}"
        by = lost.difference
        plus = f"{by.value:+.2f} ({by.low:+.2f} to {by.high:+.2f})"
        yield name, f"{lost.before:.2f}", f"{lost.after:.2f}", plus
    if before.slowdown is not None and after.slowdown is not None:
        yield "slowdown by late ranks", f"{before.slowdown:.2f}x", f"{after.slowdown:.2f}x", ""
    for stage in found.stages:
        if max(stage.before, stage.after) > SMALLEST_STAGE * found.step.before:
            yield _ratio_row(f"{stage.name}, median rank", stage, _seconds)


def _ratio_row(name: str, one: QuantityChange, show: Callable[[float], str]) -> Row:
    interval = "{} ({} to {})".format(*_numbers(one.ratio)) if one.ratio else ""
    return name, show(one.before), show(one.after), interval


def _numbers(found: Interval) -> list[str]:
    """Return value, low and high with as many decimals as show the width of the interval."""
    digits = 2 if found.high - found.low >= 0.05 else 3
    return [f"{number:.{digits}f}" for number in (found.value, found.low, found.high)]


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _amount(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
