"""How many of the incidents that people judged were right."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Final

from exporter.report.confirmations import NO, UNSURE, YES

# 95 % of a normal distribution.
Z: Final = 1.959964


@dataclass(frozen=True, slots=True)
class Precision:
    """How many incidents people confirmed, refuted, were unsure of, and have not judged."""

    confirmed: int
    refuted: int
    unsure: int
    unjudged: int

    @property
    def ratio(self) -> float | None:
        """Return the share of the judged ones that were right; None without any."""
        judged = self.confirmed + self.refuted
        return self.confirmed / judged if judged else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the Wilson score interval of the ratio, 95 % (Wilson 1927)."""
        count = self.confirmed + self.refuted
        if not count:
            return None
        ratio, spread = self.confirmed / count, Z * Z / count
        middle = (ratio + spread / 2) / (1 + spread)
        half = sqrt(ratio * (1 - ratio) * Z * Z / count + spread * spread / 4) / (1 + spread)
        return max(0.0, middle - half), min(1.0, middle + half)


def precision(verdicts: Iterable[str | None]) -> Precision:
    """Count the *verdicts* on incidents, None for those without one."""
    found = list(verdicts)
    return Precision(*(found.count(verdict) for verdict in (YES, NO, UNSURE, None)))
