"""NVIDIA GPUs through NVML: a child process that samples them, and its supervisor."""
