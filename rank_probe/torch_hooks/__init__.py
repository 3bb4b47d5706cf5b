"""Where the probe touches torch: one file for each thing that is hooked or read there.

Nothing else in the probe names a private attribute of torch.
"""
