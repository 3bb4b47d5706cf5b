"""Keeps a document small enough for an assistant: long lists are cut, and it says so."""

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

Document = Mapping[str, Any]

# About 10,000 tokens; assistants warn of more, or refuse it.
LARGEST_CHARACTERS: Final = 32_000
# No runbook is longer, and no sentence nearly as long.
LONGEST_TEXT: Final = 12_000
# How many entries each list keeps: as many as fit.
MOST: Final = (sys.maxsize, 200, 100, 50, 20, 10, 5, 2, 1)


class ToolRefused(Exception):
    """A tool cannot answer; the message is a sentence that says why, and what to ask instead."""


def compact(document: Document) -> str:
    """Return *document* as JSON without white space."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def bounded(document: Document, limit: int, for_less: str) -> Document:
    """Return *document* with lists of at most *limit* entries, and fewer if it is too large.

    What was cut is in its field `cut`, with *for_less*, which says how to ask for less. The first
    entries stay: in every list, the most urgent come first. Raises ToolRefused if lists of one
    entry are still too long.
    """
    for most in MOST:
        cuts: dict[str, tuple[int, int]] = {}
        kept: dict[str, Any] = _shorter(document, "", min(most, limit), cuts)
        if cuts:
            what = [f"{path}: {shown} of {count}" for path, (shown, count) in cuts.items()]
            kept["cut"] = {"what": what, "for_less": for_less}
        if len(compact(kept)) <= LARGEST_CHARACTERS:
            return kept
    raise ToolRefused(f"the answer is too long; {for_less}")


def _shorter(value: Any, path: str, most: int, cuts: dict[str, tuple[int, int]]) -> Any:
    """Return a copy of *value*; how much of a list or text is kept is added to *cuts*."""
    if isinstance(value, dict):
        return {
            name: _shorter(each, f"{path}.{name}".lstrip("."), most, cuts)
            for name, each in value.items()
        }
    if not isinstance(value, str | list):
        return value
    longest = LONGEST_TEXT if isinstance(value, str) else most
    if len(value) > longest:
        shown, count = cuts.get(path, (0, 0))
        cuts[path] = shown + longest, count + len(value)
    kept = value[:longest]
    return kept if isinstance(kept, str) else [_shorter(each, path, most, cuts) for each in kept]
