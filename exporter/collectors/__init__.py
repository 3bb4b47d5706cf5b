"""Collectors: one file each, and one line each in catalog.py."""
