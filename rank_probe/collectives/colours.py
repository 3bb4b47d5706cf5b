"""A colour for each value on a logarithmic scale, and a text colour that can be read on it."""

import math
import statistics
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Self

Rgb = tuple[int, int, int]

# Five colours of cividis, which people with any colour vision see as steps from dark to light (J.
# R. Nuñez, C. R. Anderton and R. S. Renslow, PLOS ONE 13(7), 2018).
STOPS: Final[tuple[Rgb, ...]] = (
    (0, 34, 78),
    (65, 77, 107),
    (124, 123, 120),
    (188, 174, 108),
    (254, 232, 56),
)
# Noise alone should not reach from one end of the scale to the other.
NARROWEST: Final = 4.0


@dataclass(frozen=True, slots=True)
class Scale:
    """From *low*, the first of STOPS, to *high*, the last; *low* may be the larger value."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Collection[float], larger_is_better: bool) -> Self:
        """Return a scale that holds *values*, the best of them light."""
        middle, half = statistics.median(values), math.sqrt(NARROWEST)
        least, most = min(*values, middle / half), max(*values, middle * half)
        return cls(least, most) if larger_is_better else cls(most, least)

    def at(self, share: float) -> float:
        """Return the value at *share* of the way, from 0 (dark) to 1 (light)."""
        return float(self.low * (self.high / self.low) ** share)

    def share(self, value: float) -> float:
        """Return where *value* lies, from 0 (dark) to 1 (light)."""
        return math.log(value / self.low) / math.log(self.high / self.low)


def colour(share: float) -> Rgb:
    """Return the colour at *share* of the way through STOPS."""
    place = min(max(share, 0.0), 1.0) * (len(STOPS) - 1)
    below, above = list(pairwise(STOPS))[min(int(place), len(STOPS) - 2)]
    part = place - min(int(place), len(STOPS) - 2)
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(below, above, strict=True))
    return red, green, blue


def as_hex(rgb: Rgb) -> str:
    """Return *rgb* as SVG writes it."""
    return "#{:02x}{:02x}{:02x}".format(*rgb)


def text_on(rgb: Rgb) -> str:
    """Return black or white, whichever has more contrast on *rgb* (WCAG's relative luminance)."""
    linear = [
        (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
        for part in (value / 255 for value in rgb)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "#ffffff"
