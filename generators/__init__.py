"""What makes the parts of pages that list something; `python -m generators.build` writes them."""
