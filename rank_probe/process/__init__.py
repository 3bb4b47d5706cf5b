"""This process: which rank it is, its children, its life and its runtime."""
