"""How many ranks one Prometheus handles."""
