"""Collectors of the node, by /proc and /sys."""
