"""The node's Prometheus exporter: NVML, host and rank telemetry on one /metrics page."""
