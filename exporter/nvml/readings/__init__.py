"""What the worker reads of one GPU: each file a group of NVML functions."""
