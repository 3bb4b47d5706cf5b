"""Looks back over weeks in a Prometheus: what alerts would have paged, and what a job lost."""
