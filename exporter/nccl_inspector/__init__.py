"""What NCCL Inspector, a profiler plugin of NCCL, writes about the collectives of each process."""
