"""The rules on a real Prometheus, beside the reference accounting of the same steps."""
