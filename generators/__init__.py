"""Generators for the parts of pages that list something; `python -m generators.build` runs them."""
