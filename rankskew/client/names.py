"""The names of nodes that a Prometheus knows by their addresses, as their exporters tell them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rankskew.client.prometheus import Prometheus, Sample, selector

# By cluster and instance.
Names = Mapping[tuple[str, str], str]
NAME: Final = "rankskew_exporter_build_info"
# The name of a node whose exporter has just gone is what one looks for.
BACK: Final = "1h"
ADDRESS: Final = re.compile(r"[0-9.]+(:[0-9]+)?|.*:.*:.*")


def names_of_nodes(prometheus: Prometheus, cluster: str | None = None) -> Names:
    """Return the name of each node whose instance is an address; raises Trouble."""
    return _names(prometheus, selector(cluster=cluster))


def with_names(prometheus: Prometheus, samples: Sequence[Sample]) -> list[Sample]:
    """Return *samples* with names instead of addresses, to be shown; raises Trouble."""
    those = of_addresses(each["instance"] for each in samples)
    if those is None:
        return list(samples)
    names = _names(prometheus, those)
    return [
        replace(each, labels={**each.labels, "instance": names[each["cluster"], each["instance"]]})
        if (each["cluster"], each["instance"]) in names
        else each
        for each in samples
    ]


def of_addresses(instances: Iterable[str]) -> str | None:
    """Return the matcher of those *instances* that are addresses; None if none is."""
    addresses = sorted(filter(ADDRESS.fullmatch, set(instances)))
    if not addresses:
        return None
    those = "|".join(re.escape(address) for address in addresses)
    return selector(instance=those).replace("=", "=~", 1)


def _names(prometheus: Prometheus, where: str) -> Names:
    named = ",".join(filter(None, (where, 'nodename!=""')))
    found = prometheus.query(f"last_over_time({NAME}{{{named}}}[{BACK}])")
    return {
        (each["cluster"], each["instance"]): each["nodename"]
        for each in found
        if ADDRESS.fullmatch(each["instance"])
    }
