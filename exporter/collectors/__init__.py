"""Collectors: one file for each, one line for each in catalog.py."""
