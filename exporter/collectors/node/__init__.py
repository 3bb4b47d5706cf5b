"""Collectors of the node, from /proc and /sys."""
