"""The pairs as a heat map in SVG: a panel of bandwidths and one of latencies.

A row is a sender, a column a receiver. Light is fast, dark is slow, and what is named has a red
frame. The text follows the reader's light or dark theme.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from rank_probe.collectives.colours import STOPS, Scale, as_hex, colour, text_on
from rank_probe.collectives.measure import MeasuredLinks
from rank_probe.collectives.measurements.units import show_bandwidth, show_seconds
from rank_probe.collectives.named import Slow
from rank_probe.collectives.report import verdict
from rank_probe.collectives.verdict import Link, Measure, costs

MOST_RANKS_WITH_VALUES: Final = 16
MOST_RANKS_WITH_NAMES: Final = 64
PANEL: Final = 640
CELL_WITH_VALUE: Final = 62
MARGIN: Final = 48
TOP: Final = 104
LEGEND: Final = 74
STYLE: Final = """\
<style>
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .paper { fill: #ffffff; }
  .head { font-size: 15px; font-weight: 600; }
  .named { fill: none; stroke: #d1242f; stroke-width: 3; }
  .edge { stroke: #1f2328; stroke-width: 1; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .paper { fill: #0d1117; }
    .named { stroke: #ff7b72; }
    .edge { stroke: #e6edf3; }
  }
</style>"""


@dataclass(frozen=True, slots=True)
class Panel:
    """A map of *values* by link, drawn from *left*, with cells of *cell* pixels."""

    measure: Measure
    values: Mapping[Link, float]
    show: Callable[[float], str]
    scale: Scale
    left: float
    cell: float


def draw(result: MeasuredLinks) -> str:
    """Return the picture."""
    ranks = len(result.hosts)
    cell = CELL_WITH_VALUE if ranks <= MOST_RANKS_WITH_VALUES else max(PANEL / ranks, 2.0)
    side = ranks * cell
    # A panel of two ranks is still as wide as its legend.
    width = 2 * MARGIN + max(side, 260)
    bandwidths = {link: 1 / cost for link, cost in costs(result.best, "bandwidth").items()}
    latencies = costs(result.best, "latency")
    panels = (
        Panel(
            "bandwidth",
            bandwidths,
            show_bandwidth,
            Scale.over(bandwidths.values(), larger_is_better=True),
            MARGIN,
            cell,
        ),
        Panel(
            "latency",
            latencies,
            show_seconds,
            Scale.over(latencies.values(), larger_is_better=False),
            MARGIN + width,
            cell,
        ),
    )
    return "\n".join(_lines(result, panels, 2 * width, TOP + side + LEGEND)) + "\n"


def _lines(
    result: MeasuredLinks, panels: Sequence[Panel], width: float, height: float
) -> Iterator[str]:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    ranks = len(result.hosts)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="t d">'
    yield f'<title id="t">Bandwidth and latency between {ranks} ranks, {result.backend}</title>'
    yield (
        f'<desc id="d">Rows send, columns receive; light is fast. {escape(verdict(result))}.</desc>'
    )
    yield STYLE
    yield f'<rect class="paper" width="{width:.0f}" height="{height:.0f}"/>'
    yield f'<text class="head" x="{MARGIN}" y="24">{escape(_headline(result))}</text>'
    yield (
        f'<text x="{MARGIN}" y="44">{ranks} ranks, {escape(result.backend)}; '
        "rows send, columns receive; light is fast, a red frame is slow</text>"
    )
    for panel in panels:
        yield f'<text class="head" x="{panel.left}" y="{TOP - 28}">{panel.measure.title()}</text>'
        yield from _names(panel, ranks)
        yield from (_cell(panel, link, ranks, result.hosts) for link in panel.values)
        yield from _nodes(panel, result.hosts)
        yield from _frames(panel, result)
        yield from _legend(panel, ranks)
    yield "</svg>"


def _headline(result: MeasuredLinks) -> str:
    if result.named:
        return "Slow: " + "; ".join(dict.fromkeys(one.title for one in result.named))
    return "No link stands out"


def _names(panel: Panel, ranks: int) -> Iterator[str]:
    if ranks > MOST_RANKS_WITH_NAMES:
        return
    small = ' style="font-size: 9px"' if ranks > MOST_RANKS_WITH_VALUES else ""
    for rank in range(ranks):
        middle = (rank + 0.5) * panel.cell
        across = f'x="{panel.left + middle:.1f}" y="{TOP - 6}" text-anchor="middle"'
        down = f'x="{panel.left - 6}" y="{TOP + middle + 4:.1f}" text-anchor="end"'
        yield f"<text {across}{small}>{rank}</text>"
        yield f"<text {down}{small}>{rank}</text>"


def _cell(panel: Panel, link: Link, ranks: int, hosts: Sequence[str]) -> str:
    sender, receiver = link
    value = panel.values[link]
    fill = colour(panel.scale.share(value))
    x, y = panel.left + receiver * panel.cell, TOP + sender * panel.cell
    gap = 1 if ranks <= MOST_RANKS_WITH_NAMES else 0
    side = f'width="{panel.cell - gap:.1f}" height="{panel.cell - gap:.1f}"'
    rect = f'<rect x="{x:.1f}" y="{y:.1f}" {side} fill="{as_hex(fill)}"'
    if ranks > MOST_RANKS_WITH_NAMES:
        return f"{rect}/>"
    words = (
        f"rank {sender} ({hosts[sender]}) to rank {receiver} ({hosts[receiver]}): "
        f"{panel.show(value)}"
    )
    rect = f"{rect}><title>{escape(words)}</title></rect>"
    if ranks > MOST_RANKS_WITH_VALUES:
        return rect
    number, _, unit = panel.show(value).partition(" ")
    style = f'text-anchor="middle" style="fill: {text_on(fill)}"'
    middle, centre = x + panel.cell / 2, y + panel.cell / 2
    return (
        f'{rect}<text x="{middle:.1f}" y="{centre - 1:.1f}" {style}>{number}</text>'
        f'<text x="{middle:.1f}" y="{centre + 14:.1f}" {style}>{unit}</text>'
    )


def _nodes(panel: Panel, hosts: Sequence[str]) -> Iterator[str]:
    """Draw a line where one node ends, if each has several ranks."""
    if len(set(hosts)) == len(hosts):
        return
    side = len(hosts) * panel.cell
    for rank in range(1, len(hosts)):
        if hosts[rank] != hosts[rank - 1]:
            at = rank * panel.cell - 0.5
            right, x, y = panel.left + side, panel.left + at, TOP + at
            yield f'<line class="edge" x1="{panel.left}" y1="{y}" x2="{right}" y2="{y}"/>'
            yield f'<line class="edge" x1="{x}" y1="{TOP}" x2="{x}" y2="{TOP + side}"/>'


def _frames(panel: Panel, result: MeasuredLinks) -> Iterator[str]:
    slow = [reading for one in result.named for reading in one.slow]
    boxes = [
        box
        for one in slow
        if one.measure == panel.measure
        for box in _boxes(one, len(result.hosts))
    ]
    for row, column, wide, high in boxes:
        x, y = panel.left + column * panel.cell, TOP + row * panel.cell
        size = f'width="{wide * panel.cell - 1:.1f}" height="{high * panel.cell - 1:.1f}"'
        yield f'<rect class="named" x="{x:.1f}" y="{y:.1f}" {size}/>'


def _boxes(one: Slow, ranks: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield row, column, width and height, in cells, of what is slow; latency is so both ways."""
    if len(one.ranks) == 2:
        sender, receiver = one.ranks
        yield sender, receiver, 1, 1
        if one.measure == "latency":
            yield receiver, sender, 1, 1
        return
    (rank,) = one.ranks
    if one.way != "receives":
        yield rank, 0, ranks, 1
    if one.way != "sends":
        yield 0, rank, 1, ranks


def _legend(panel: Panel, ranks: int) -> Iterator[str]:
    name = f"scale-{panel.measure}"
    y, width = TOP + ranks * panel.cell + 20, 220
    stops = "".join(
        f'<stop offset="{index / (len(STOPS) - 1):.2f}" stop-color="{as_hex(rgb)}"/>'
        for index, rgb in enumerate(STOPS)
    )
    yield f'<defs><linearGradient id="{name}">{stops}</linearGradient></defs>'
    bar = f'x="{panel.left}" y="{y:.0f}" width="{width}" height="12"'
    yield f'<rect {bar} fill="url(#{name})"/>'
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        place = f'x="{panel.left + width * share:.0f}" y="{y + 28:.0f}" text-anchor="{anchor}"'
        yield f"<text {place}>{panel.show(panel.scale.at(share))}</text>"
