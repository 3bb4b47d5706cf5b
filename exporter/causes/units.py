"""Figures for people: the unit is the end of a figure's name, except where it only counts."""

from typing import Final, NamedTuple

COUNT: Final = ""


class _Scale(NamedTuple):
    """How a unit is written from the value *least* on: multiplied by *by*, and what follows."""

    least: float
    by: float
    suffix: str


# The longest unit first: bytes per second are not "per second".
_SCALES: Final = {
    "bytes_per_second": (_Scale(1e9, 1e-9, " GB/s"), _Scale(0, 1e-6, " MB/s")),
    "per_second": (_Scale(0, 1, " a second"),),
    "hertz": (_Scale(0, 1e-9, " GHz"),),
    "celsius": (_Scale(0, 1, " °C"),),
    "watts": (_Scale(0, 1, " W"),),
    "seconds": (_Scale(1, 1, " s"), _Scale(1e-3, 1e3, " ms"), _Scale(0, 1e6, " µs")),
    "ratio": (_Scale(0, 100, " %"),),
    COUNT: (_Scale(0, 1, ""),),
}


def unit_of(figure: str) -> str:
    """Return the unit of a figure; COUNT if its name has none."""
    return next((unit for unit in _SCALES if f"_{figure}".endswith(f"_{unit}")), COUNT)


def text(figure: str, value: float) -> str:
    """Return *value* as people write it: 1.41 GHz, 87 °C, 34 %, 240 MB/s, 210 ms."""
    scale = _scale(unit_of(figure), abs(value))
    return _number(figure, value * scale.by) + scale.suffix


def pair(figure: str, own: float, peers: float) -> tuple[str, str]:
    """Return a rank's value, and its peers' on the same scale: ("1.41 GHz", "1.95")."""
    unit = unit_of(figure)
    scale = _scale(unit, max(abs(own), abs(peers)))
    # "34 % ..., its peers' 2" would be two of something.
    repeated = scale.suffix if unit == "ratio" else ""
    return (
        _number(figure, own * scale.by) + scale.suffix,
        _number(figure, peers * scale.by) + repeated,
    )


def _scale(unit: str, size: float) -> _Scale:
    return next((scale for scale in _SCALES[unit] if size >= scale.least), _SCALES[unit][-1])


def _number(figure: str, value: float) -> str:
    if unit_of(figure) == "hertz":
        return f"{value:.2f}"
    if abs(value) < 10:
        return "0" if abs(value) < 1e-4 else f"{value:.2g}"
    # Links have 12.5 GB/s.
    is_exact = unit_of(figure) == "bytes_per_second" and abs(value) < 100
    return f"{value:.3g}" if is_exact else f"{value:,.0f}"
