"""The version is in rank_probe/version.py; whatever repeats it says the same."""

import re
import subprocess
from pathlib import Path

import pytest

from rank_probe.version import __version__

ROOT = Path(__file__).parents[2]
# What a command prints, an image's tag, a file of the release, a chart's fields, an image's label.
MENTIONS = (
    r"\brankskew[ :-]v?(\d+\.\d+\.\d+)",
    r"^(?:version|appVersion): \"?v?(\d+\.\d+\.\d+)",
    r"image\.version=\"?v?(\d+\.\d+\.\d+)",
    r"app\.kubernetes\.io/version: \"?v?(\d+\.\d+\.\d+)",
    r"helm\.sh/chart: rankskew-(\d+\.\d+\.\d+)",
)
PLACES = ("*.md", "Dockerfile", "docs/**/*.md", "alerts/**/*.md", "deploy/**/*")


def mentions(text: str) -> list[str]:
    return [found for each in MENTIONS for found in re.findall(each, text, re.MULTILINE)]


def pages() -> list[str]:
    """Return the tracked files of a reader or an operator that mention a version of rankskew."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", *(f":(glob){each}" for each in PLACES)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = [name for name in listed.split("\0") if (ROOT / name).is_file()]
    texts = [name for name in names if not name.endswith((".png", ".svg"))]
    return [name for name in texts if mentions((ROOT / name).read_text(encoding="utf-8"))]


@pytest.mark.parametrize("name", pages())
def test_version_is_repeated_right(name: str) -> None:
    """A page, a chart or an image of this release names this release."""
    assert set(mentions((ROOT / name).read_text(encoding="utf-8"))) == {__version__}


def test_mentions_are_found() -> None:
    """The patterns see each way to write it."""
    text = """
probe: rankskew 1.2.3
image: registry/rankskew:1.2.4
version: 1.2.5
appVersion: "1.2.6"
LABEL org.opencontainers.image.version="1.2.7"
helm.sh/chart: rankskew-1.2.8
    python: 3.11.2
"""
    assert set(mentions(text)) == {f"1.2.{number}" for number in range(3, 9)}
    assert "docs/operating.md" in pages()
