"""Collectors of GPUs, from the NVML worker's last sample."""
