"""What deploy/ offers, and the commands of its pages as a reader types them."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def blocks(page: str, heading: str) -> list[str]:
    """Return the shell blocks of *page*, a path in the repository, under `## *heading*`."""
    text = (ROOT / page).read_text()
    [section] = re.findall(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.M | re.S)
    found = re.findall(r"^```sh\n(.*?)^```$", section, re.M | re.S)
    assert found, f"{page} has no commands under {heading}"
    return found
