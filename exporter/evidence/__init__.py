"""What is known of why ranks are late: figures of ranks, GPUs and the node over any window."""
