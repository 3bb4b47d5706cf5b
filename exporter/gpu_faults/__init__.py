"""Faults of GPUs, decided on their own node: pure, but for a memory that its caller feeds."""
