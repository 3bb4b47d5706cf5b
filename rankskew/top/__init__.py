"""`rankskew top`: jobs and their ranks in a terminal, from exporters or a Prometheus."""
