"""Writes generated files, or says which of the committed ones are stale."""

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def write_or_check(texts: Mapping[Path, str], command: str, left_over: Iterable[Path] = ()) -> int:
    """Write *texts*, or with --check name what differs from them; return the exit status.

    The output names *command*, which regenerates them. *left_over* files should not exist.
    """
    parser = argparse.ArgumentParser(description="Write generated files.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    check = parser.parse_args().check
    stale = [path for path, text in texts.items() if text_of(path) != text]
    if not check:
        for path in stale:
            path.write_text(texts[path], encoding="utf-8")
        return 0
    for path in (*stale, *left_over):
        print(f"stale: {os.path.relpath(path)}; run `{command}` and commit", file=sys.stderr)
    return 1 if (*stale, *left_over) else 0


def text_of(path: Path) -> str:
    """Return the content of a file; empty if it does not exist."""
    return path.read_text(encoding="utf-8") if path.exists() else ""
