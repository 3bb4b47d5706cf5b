"""The probe on several releases of torch and Python, each in an environment of its own."""

from typing import Final

# What is run beside the ways to train.
JOIN: Final = "verdict of the join"
TESTS: Final = "tests of the probe"
