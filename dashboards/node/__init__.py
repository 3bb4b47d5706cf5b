"""The dashboard of one node and its GPUs."""
