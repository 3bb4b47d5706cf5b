"""Compares the steps of a job before and after a change."""
