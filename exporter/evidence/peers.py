"""The figures of a late rank's peers: those that the join brought, else those of this node."""

from collections.abc import Mapping, Sequence
from typing import Final

from exporter.causes.model import Figures, Peers, Quantiles
from rank_probe.wire.snapshot import Snapshot

THIRDS: Final = (1 / 3, 1 / 2, 2 / 3)


def peers_of(snapshot: Snapshot, here: Sequence[Figures]) -> Peers:
    """Return by figure what the peers of the rank of *snapshot* have.

    *here* are the figures of those on this node: all that is known without a join, and of a figure
    that the join does not carry.
    """
    told = {name: Quantiles(*each) for name, each in snapshot.peer_figures.items()}
    return {**quantiles_of(here), **told}


def quantiles_of(figures: Sequence[Figures]) -> Mapping[str, Quantiles]:
    """Return the quantiles of each figure over those who have it, as rank_probe.join.peers does."""
    names = {name for each in figures for name in each}
    return {name: _quantiles([each[name] for each in figures if name in each]) for name in names}


def _quantiles(values: list[float]) -> Quantiles:
    values.sort()
    return Quantiles(*(_quantile(values, share) for share in THIRDS))


def _quantile(ordered: Sequence[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])
