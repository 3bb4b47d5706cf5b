"""The documentation; `python -m docs.build` generates everything that lists something."""
