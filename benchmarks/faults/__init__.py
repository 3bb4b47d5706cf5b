"""Faults of every kind against a real stack: nothing counted is lost, doubled or late."""
