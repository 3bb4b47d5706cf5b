"""Words that several sentences need: lists, times and numbers."""

from collections.abc import Sequence
from typing import Final

# Length of each list, so that the page of a job with thousands of ranks stays readable.
MOST_NAMES: Final = 3


def listed(names: Sequence[str]) -> str:
    """Return *names* as an enumeration."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def sentence(text: str) -> str:
    """Return *text* with a capital first letter."""
    return text[0].upper() + text[1:]


def duration(seconds: float) -> str:
    """Return *seconds* in a readable unit."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def short(seconds: float) -> str:
    """Return *seconds*, perhaps few, in a readable unit."""
    if seconds < 0.0995:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


def few(value: float) -> str:
    """Return a number of GPUs, as the alerts write it."""
    return f"{value:.2f}"


def which(spans: Sequence[Sequence[int]], in_common: str) -> str:
    """Return which ranks are in *spans* (first and last of each), and what only they have."""
    names: list[str] = []
    for first, last in spans[:MOST_NAMES]:
        names += [f"{first} to {last}"] if last > first + 1 else map(str, sorted({first, last}))
    if hidden := sum(last - first + 1 for first, last in spans[MOST_NAMES:]):
        names.append(f"{hidden} more")
    said = [listed(names)] if names else []
    if in_common:
        said.append(f"all of {in_common}, and no others")
    return f" ({': '.join(said)})" if said else ""


def them(count: int) -> str:
    """Return the pronoun for so many ranks, as an object."""
    return "it" if count == 1 else "them"


def their(count: int) -> str:
    """Return the possessive for so many ranks."""
    return "its" if count == 1 else "their"


def than(has_risen: Sequence[bool]) -> str:
    """Return what the time of ranks is compared with: that of before, or their peers'."""
    peers = f"{their(len(has_risen))} peers"
    return f"than {' or '.join(sorted({'before' if each else peers for each in has_risen}))}"


def be(count: int) -> str:
    """Return the verb for so many ranks."""
    return "is" if count == 1 else "are"
