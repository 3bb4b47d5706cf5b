"""Where a verdict on a node is put: Slurm, Kubernetes, or a webhook."""
