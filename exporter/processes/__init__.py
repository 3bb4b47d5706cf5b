"""The node's processes: which is a rank, which GPU it uses, which pod or Slurm job is it in."""
