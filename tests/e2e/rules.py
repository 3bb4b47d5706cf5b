"""The shipped rules, in a hurry."""

import re
from pathlib import Path

from devstack.parts import RULES


def fast_rules(directory: Path, rules: Path = RULES) -> Path:
    """Write *rules*, those shipped by default, all evaluated as often as they can be."""
    directory.mkdir()
    for path in rules.glob("*.yaml"):
        text = re.sub(r"^    interval: .*\n", "", path.read_text(), flags=re.MULTILINE)
        (directory / path.name).write_text(text)
    return directory
