"""The commands of a page, as a reader types them."""

import re
from pathlib import Path
from typing import Final

from tests.deploy.debian import ROOT

FENCE: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, heading: str) -> list[str]:
    """Return the shell blocks of *page*, a path in the repository, under `## *heading*`."""
    text = (ROOT / page).read_text()
    [section] = re.findall(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.M | re.S)
    found = FENCE.findall(section)
    assert found, f"{page} has no commands under {heading}"
    return found


def with_deploy(script: str, directory: str = "/usr/local/share/rankskew") -> str:
    """Return *script* with deploy/ of the checkout where `rankskew files` has written none."""
    written = f"{directory}/deploy"
    line = f"rankskew files {directory}\n"
    assert line in script
    return script.replace(line, f"{line}[ -e {written} ] || cp -r {Path(ROOT)}/deploy {written}\n")
