"""What the probe and the exporter agree on: stages, figures, and the snapshot that travels."""
