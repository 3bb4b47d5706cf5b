"""The figures of a late rank's peers: those that the join brought, else those of this node."""

import statistics
from collections.abc import Mapping, Sequence

from exporter.causes.model import Figures, Peers, Quantiles
from rank_probe.wire.snapshot import Snapshot


def peers_of(snapshot: Snapshot, here: Sequence[Figures]) -> Peers:
    """Return the quantiles of each figure over the peers of the rank of *snapshot*.

    *here* are the figures of the peers on this node. They are used without a join, and for figures
    that the join does not carry.
    """
    told = {name: Quantiles(*each) for name, each in snapshot.peer_figures.items()}
    return {**quantiles_of(here), **told}


def quantiles_of(figures: Sequence[Figures]) -> Mapping[str, Quantiles]:
    """Return the quantiles of each figure over those who have it, as rank_probe.join.peers does."""
    names = {name for each in figures for name in each}
    return {name: _quantiles([each[name] for each in figures if name in each]) for name in names}


def _quantiles(values: list[float]) -> Quantiles:
    two_at_least = values if len(values) > 1 else values * 2
    return Quantiles(*statistics.quantiles(two_at_least, n=6, method="inclusive")[1:4])
