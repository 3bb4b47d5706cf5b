"""Hostile snapshots and requests against a real exporter."""
