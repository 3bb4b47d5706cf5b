"""The pairs as a heat map, in SVG."""

from rank_probe.collectives.measure import Result


def draw(result: Result) -> str:
    return ""
