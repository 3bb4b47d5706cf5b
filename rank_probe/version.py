"""The version of rankskew: probe, exporter, rules and dashboards are released together."""

__version__ = "0.1.0"
