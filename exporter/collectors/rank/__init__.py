"""Collectors of ranks and jobs."""
