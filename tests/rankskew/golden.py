"""Texts for people, each as a whole in a file below tests/fixtures/client.

`WRITE_GOLDEN=1 python -m pytest tests/rankskew` writes them again: then read what has changed.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "client"


def assert_golden(name: str, texts: Mapping[str, str]) -> None:
    """Have *texts*, each below its heading, be what the file *name* has."""
    said = "\n".join(f"==== {heading} ====\n{text.rstrip()}\n" for heading, text in texts.items())
    file = FOLDER / f"{name}.txt"
    if "WRITE_GOLDEN" in os.environ:
        file.write_text(said)
    assert said == file.read_text()
