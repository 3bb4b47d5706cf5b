"""Every metric that the exporter exposes."""

import functools
from collections.abc import Mapping

from exporter.scrape.levels import exposed_name
from generators.metrics import families_by_collector


@functools.cache
def exposed() -> Mapping[str, str]:
    """Return the collector of each metric, by its name on /metrics."""
    return {
        exposed_name(family): collector
        for collector, _, families in families_by_collector()
        for family in families
    }
