"""What a Prometheus with the shipped rules knows of one job."""
