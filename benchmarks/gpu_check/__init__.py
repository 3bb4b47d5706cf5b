"""The device clock on a CUDA device, beside torch.profiler."""
