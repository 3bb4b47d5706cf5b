"""Asks other programs over HTTP: exporters and a Prometheus."""
