"""Collectors of GPUs, by what NVML's worker last read."""
