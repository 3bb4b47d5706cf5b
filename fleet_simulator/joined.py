"""What the ranks of a simulated job tell one another through their join: their figures."""

from collections.abc import Collection, Mapping

from exporter.evidence.peers import quantiles_of


class JoinedFigures:
    """The figures that the ranks have posted, on whichever node they are."""

    def __init__(self) -> None:
        self._posted: dict[int, Mapping[str, float]] = {}
        self._told: dict[str, list[float]] | None = None
        self._late: frozenset[int] = frozenset()

    def post(self, rank: int, figures: Mapping[str, float]) -> None:
        """Take the *figures* of *rank*."""
        self._posted[rank] = figures
        self._told = None

    def of_peers(self, late: Collection[int]) -> dict[str, list[float]]:
        """Return what a late rank reads: thirds and median of those that are not *late*."""
        if self._told is None or self._late != frozenset(late):
            self._late = frozenset(late)
            others = [each for rank, each in self._posted.items() if rank not in self._late]
            self._told = {name: list(each) for name, each in quantiles_of(others).items()}
        return self._told
