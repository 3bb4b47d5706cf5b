"""Pictures of a job as SVG: efficiency over time, and what it lost to each cause."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from exporter.report.document import Picture
from exporter.report.job import JobReport, Point
from exporter.report.spans import Span
from exporter.report.times import DAY_SECONDS, gpu_hours, show

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 26
# So many means are drawn; a screen shows no more.
BUCKETS: Final = 240
TICKS: Final = 4
BAR, GAP, NAME_WIDTH, VALUE_WIDTH = 20, 8, 190, 90


def efficiency_picture(job: JobReport) -> Picture | None:
    """Draw the share of the GPUs that was not lost; where it is not known, there is a hole."""
    size = dict(job.gpus)
    points = [(at, 1 - lost / size[at]) for at, lost in job.lost if size.get(at)]
    if not points:
        return None
    span = job.alive[0][0], job.alive[-1][1]
    # Not more than there are values: else there would be holes between them.
    wide = max((span[1] - span[0]) / BUCKETS, job.times.step_seconds)
    means = _means(points, span, wide)
    drawn = _lines(means, span, wide)
    lines = "".join(f'<polyline class="line" points="{line}"/>' for line in drawn)
    least = min(value for _, value in means)
    says = (
        f"Efficiency over time from {show(span[0])} to {show(span[1])} UTC: "
        f"mean {job.efficiency or 0:.0%}, least {max(0.0, least):.0%}"
    )
    return Picture(_svg(HEIGHT, says, _axes(span) + lines), says)


def bars_picture(title: str, parts: Mapping[str, float]) -> Picture | None:
    """Draw a bar for each of the *parts*, GPU-hours by name, the largest first."""
    if not parts:
        return None
    most = max(parts.values())
    room = WIDTH - NAME_WIDTH - VALUE_WIDTH
    drawn = [
        _bar(n, name, hours, room * hours / most if most else 0.0)
        for n, (name, hours) in enumerate(parts.items())
    ]
    says = f"{title}: " + ", ".join(f"{name} {gpu_hours(h)} GPU-hours" for name, h in parts.items())
    return Picture(_svg(len(parts) * (BAR + GAP) + GAP, says, "".join(drawn)), says)


def _svg(height: int, says: str, inside: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(says)}" '
        f'xmlns="http://www.w3.org/2000/svg">{inside}</svg>'
    )


def _bar(n: int, name: str, hours: float, width: float) -> str:
    top = GAP + n * (BAR + GAP)
    middle = top + BAR * 0.72
    return (
        f'<text class="name" x="{NAME_WIDTH - 8}" y="{middle:.1f}">{escape(name)}</text>'
        f'<rect class="bar" x="{NAME_WIDTH}" y="{top}" width="{max(width, 1):.1f}" '
        f'height="{BAR}" rx="2"/>'
        f'<text x="{NAME_WIDTH + width + 6:.1f}" y="{middle:.1f}">{gpu_hours(hours)} h</text>'
    )


def _means(points: Sequence[Point], span: Span, wide: float) -> list[Point]:
    """Return the mean of each part of *span* that has points, at its middle."""
    found: dict[int, list[float]] = {}
    for at, value in points:
        found.setdefault(int((at - span[0]) / wide), []).append(value)
    return [(span[0] + (n + 0.5) * wide, sum(v) / len(v)) for n, v in sorted(found.items())]


def _lines(means: Sequence[Point], span: Span, wide: float) -> list[str]:
    """Return the coordinates of each line without a hole."""
    found: list[list[Point]] = []
    for point in means:
        if not found or point[0] - found[-1][-1][0] > 2.5 * wide:
            found.append([])
        found[-1].append(point)
    return [
        " ".join(f"{_x(at, span):.1f},{_y(value):.1f}" for at, value in _at_least_two(line, wide))
        for line in found
    ]


def _at_least_two(line: Sequence[Point], wide: float) -> Sequence[Point]:
    """Return *line*; a single point becomes as wide as what it is the mean of."""
    return line if len(line) > 1 else [line[0], (line[0][0] + wide, line[0][1])]


def _axes(span: Span) -> str:
    rows = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(v):.1f}" y2="{_y(v):.1f}"/>'
        f'<text class="name" x="{LEFT - 6}" y="{_y(v) + 4:.1f}">{v:.0%}</text>'
        for v in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    form = "%m-%d" if span[1] - span[0] > 3 * DAY_SECONDS else "%m-%d %H:%M"
    ends = ("start", *["middle"] * (TICKS - 1), "end")
    times = (span[0] + n * (span[1] - span[0]) / TICKS for n in range(TICKS + 1))
    ticks = "".join(
        f'<text x="{_x(at, span):.1f}" y="{HEIGHT - 8}" text-anchor="{end}">'
        f"{datetime.fromtimestamp(at, UTC):{form}}</text>"
        for at, end in zip(times, ends, strict=True)
    )
    return rows + ticks


def _x(at: float, span: Span) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (at - span[0]) / (span[1] - span[0])


def _y(value: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - max(0.0, min(1.0, value)))
