"""Which torch a rank of this Python would train with, and what the probe would miss in it."""

from dataclasses import dataclass
from importlib import metadata

from rank_probe.torch_hooks.private import NEWEST, OLDEST, TABLE, absent_from, minor, sentences


@dataclass(frozen=True, slots=True)
class TorchHere:
    """The installed *version*; which of torch's private *names* it lacks, as far as is known.

    *without_them* says what the probe does without those.
    """

    version: str
    names: int
    lacking: tuple[str, ...]
    without_them: tuple[str, ...]

    def lines(self) -> tuple[str, ...]:
        """Return what there is to say for people."""
        untried = ""
        if minor(self.version) > minor(NEWEST):
            untried = f"; it is newer than {NEWEST}, the last that the probe was tried on"
        elif minor(self.version) < minor(OLDEST):
            untried = f"; it is older than {OLDEST}, the first that the probe was tried on"
        without = (f"without them: {sentence}" for sentence in self.without_them)
        return (f"{self.version} {self._has}{untried}", *without)

    @property
    def _has(self) -> str:
        if self.lacking:
            return f"lacks {len(self.lacking)} of the names that the probe uses in it"
        return f"has the {self.names} names that the probe uses in it"


def torch_here() -> TorchHere | None:
    """Look at what is installed, without importing it; None if there is no torch."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    return torch_of(version)


def torch_of(version: str) -> TorchHere:
    """Return what is known of the torch of *version*."""
    lacking = absent_from(version)
    names = sum(row.is_in(version) for row in TABLE)
    return TorchHere(version, names, tuple(row.name for row in lacking), tuple(sentences(lacking)))
