"""`rankskew compare`: what a change did to a job, with an interval."""

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from exporter.commands.arguments import Parser, add_duration, add_json
from exporter.vocabulary.words import slow_at
from rank_probe.wire.document import as_document
from rank_probe.wire.stages import STAGES
from rankskew.client.fetch import Trouble
from rankskew.commands.servers import add_access, add_prometheus, prometheus
from rankskew.compare.choose import compare_recorded
from rankskew.compare.comparison import (
    CANNOT_TELL,
    EXIT_STATUS,
    NO_WORSE,
    NO_WORSE_RATIO,
    QUANTITIES,
    Comparison,
    QuantityChange,
)
from rankskew.compare.statistics import Interval
from rankskew.render import Document, Section, render
from rankskew.report.history import TIMEOUT_SECONDS

EXAMPLES: Final = """\
rankskew compare 14:05..14:20 --prometheus http://prometheus:9090 --job llama
rankskew compare 13:50/14:05..14:20/14:40 --prometheus http://prometheus:9090
rankskew compare job:llama-1..job:llama-2 --prometheus http://prometheus:9090"""
COLUMNS: Final = ("", ">before", ">after", ">after / before (95 % interval)")
# Stages that take less of a step are not listed.
SMALLEST_STAGE: Final = 0.005


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew compare",
        description="Say what a change between A and B did: how much longer or shorter steps take "
        "since, with a 95 % interval, and whether that is certain. Exit status: 0 better or no "
        "worse, 1 worse, 2 cannot tell.",
        examples=EXAMPLES,
    )
    # argparse must not take -40m..-10m for an option.
    options._negative_number_matcher = re.compile(r"-\d")
    options.add_argument(
        "sides",
        metavar="A..B",
        help="two times such as 14:05..14:20 (UTC) or -40m..-10m, periods "
        "13:50/14:05..14:20/14:40, or job:OLD..job:NEW",
    )
    add_prometheus(options)
    options.add_argument("--job", metavar="JOB_ID", help="this job; optional if there is only one")
    add_duration(options, "--window", "10m", "how long before A and after B is compared")
    formats = options.add_mutually_exclusive_group()
    add_json(formats, "the verdict and all figures; docs/compare.md describes it")
    formats.add_argument("--markdown", action="store_true", help="print Markdown, for a ticket")
    add_access(options)
    return options


def run(arguments: Sequence[str]) -> int:
    """Print a comparison; returns 0 if it is better or no worse, 1 if worse, 2 if unknown."""
    options = parser().parse_args(arguments)
    server = prometheus(options, TIMEOUT_SECONDS)
    try:
        found = compare_recorded(
            server, options.sides, options.window, time.time(), options.job, options.cluster
        )
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


# ---- In words ----------------------------------------------------------------------------------


def comparison_document(found: Comparison) -> Document:
    """Return *found* in words."""
    sections = []
    if rows := list(_rows(found)):
        sections.append(Section("Before and after", names=COLUMNS, rows=rows))
    if late := list(_late(found)):
        sections.append(Section("Late ranks", late))
    return Document(_heading(found), list(_sentences(found)), sections)


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
        yield "Late ranks cannot be compared: the job was not judged both before and after."
        return
    for one in found.late:
        before = "not late" if one.late == "after" else _gpus(one.gpus_before)
        after = "no longer late" if one.late == "before" else f"{_gpus(one.gpus_after)} after"
        yield f"Rank {one.rank}, slow {slow_at(one.stage)}: {before} before, {after}."
    if not found.late:
        yield "No rank was late on either side."


def _gpus(lost: float | None) -> str:
    return "late at an unknown cost" if lost is None else f"{lost:.2f} GPUs lost"


# ---- The table ---------------------------------------------------------------------------------


def _rows(found: Comparison) -> Iterator[tuple[str, str, str, str]]:
    before, after = found.before, found.after
    if before is None or after is None or not found.quantities:
        return
    yield "steps", f"{before.steps:,.0f}", f"{after.steps:,.0f}", ""
    if before.slowdown is not None and after.slowdown is not None:
        yield "slowdown by late ranks", f"{before.slowdown:.2f}x", f"{after.slowdown:.2f}x", ""
    labels = {each.name: each.label for each in QUANTITIES}
    step = found.quantities[0].before
    for each in found.quantities:
        if each.name not in STAGES or max(each.before, each.after) > SMALLEST_STAGE * step:
            show = SHOWN[each.unit]
            yield labels[each.name], show(each.before), show(each.after), _change(each)


def _change(one: QuantityChange) -> str:
    if one.unit == "gpus":
        by = one.difference
        return f"{by.value:+.2f} ({by.low:+.2f} to {by.high:+.2f})"
    return "{} ({} to {})".format(*_numbers(one.ratio)) if one.ratio else ""


def _numbers(found: Interval) -> list[str]:
    """Return value, low and high with as many decimals as show the width of the interval."""
    digits = 2 if found.high - found.low >= 0.05 else 3
    return [f"{number:.{digits}f}" for number in (found.value, found.low, found.high)]


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _amount(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


SHOWN: Final[Mapping[str, Callable[[float], str]]] = {
    "seconds": _seconds,
    "per_second": _amount,
    "gpus": "{:.2f}".format,
}
