"""Grafana dashboards as code; `python -m dashboards.build` writes them to dashboards/json."""
