"""The node's processes: which are ranks, and which GPU, pod or Slurm job each belongs to."""
