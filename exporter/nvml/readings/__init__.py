"""The readings of one GPU: each file covers a group of NVML functions."""
