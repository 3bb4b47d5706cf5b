"""The names of nodes that a Prometheus knows by their addresses, as the rules record them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from exporter.client.prometheus import Prometheus, Sample, selector

# By cluster and instance.
Names = Mapping[tuple[str, str], str]
# As in alerts/rules/exporter.yaml.
ADDRESS: Final = re.compile(r"[0-9.]+(:[0-9]+)?|.*:.*:.*")


def names_of_nodes(prometheus: Prometheus, cluster: str | None = None) -> Names:
    """Return the name of each node whose instance is an address; raises Trouble."""
    return _names(prometheus, selector(cluster=cluster))


def with_names(prometheus: Prometheus, samples: Sequence[Sample]) -> list[Sample]:
    """Return *samples* with names instead of addresses, to be shown; raises Trouble."""
    instances = {each["instance"] for each in samples}
    addresses = sorted(filter(ADDRESS.fullmatch, instances))
    if not addresses:
        return list(samples)
    those = "|".join(re.escape(address) for address in addresses)
    names = _names(prometheus, selector(instance=those).replace("=", "=~", 1))
    return [
        replace(each, labels={**each.labels, "instance": names[each["cluster"], each["instance"]]})
        if (each["cluster"], each["instance"]) in names
        else each
        for each in samples
    ]


def _names(prometheus: Prometheus, where: str) -> Names:
    found = prometheus.query(f"node:rankskew_name:info{{{where}}}")
    return {(each["cluster"], each["instance"]): each["nodename"] for each in found}
