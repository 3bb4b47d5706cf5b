"""The `rankskew` command: what people run to look at jobs, exporters and Prometheus."""
