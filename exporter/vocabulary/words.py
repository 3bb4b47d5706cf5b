"""What states, stages, kinds, reasons and causes are called, with colours: words.yaml."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

FILE: Final = Path(__file__).with_name("words.yaml")
# Ten times as fast, where PyYAML was built with libyaml.
LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Colour:
    """What a colour's name stands for on a *dashboard* (#RRGGBB) and in a *terminal* (Rich)."""

    dashboard: str
    terminal: str


@dataclass(frozen=True, slots=True)
class State:
    """What people call a state, its *colour*, one of COLOURS, and its *runbook*, if it has one.

    The runbook is named after an alert; if the state *alerts*, that is raised while it lasts. Jobs
    are listed by *urgency*, 0 first. The *sentence* is empty if there is none without figures.
    """

    word: str
    colour: str
    urgency: int
    runbook: str | None = None
    alerts: bool = False
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a late rank "is *slow*" at, and the stage's *colour* (#rrggbb) on every screen."""

    slow: str
    colour: str


@dataclass(frozen=True, slots=True)
class LostKind:
    """What GPUs are lost *to*, the *name* of that in a picture, and its *colour* (#RRGGBB)."""

    to: str
    name: str
    colour: str


@dataclass(frozen=True, slots=True)
class LateKind:
    """How a rank is late in a *word*; with a *mark*, it is not to be called late."""

    word: str
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job cannot be judged."""

    short: str
    text: str


@dataclass(frozen=True, slots=True)
class CauseWords:
    """What a cause is called, what it is, and the words for each of its *details*."""

    short: str
    text: str
    details: Mapping[str, str] = field(default_factory=dict)


_SAID: Final[Mapping[str, Mapping[str, Any]]] = yaml.load(FILE.read_text(encoding="utf-8"), LOADER)

# By their names, in the order of the file.
COLOURS: Final = {name: Colour(**said) for name, said in _SAID["colours"].items()}
STATES: Final = {name: State(**said) for name, said in _SAID["states"].items()}
STAGES: Final = {name: Stage(**said) for name, said in _SAID["stages"].items()}
KINDS: Final = {name: LostKind(**said) for name, said in _SAID["kinds"].items()}
LATE_KINDS: Final = {name: LateKind(**said) for name, said in _SAID["late_kinds"].items()}
REASONS: Final = {name: Reason(**said) for name, said in _SAID["reasons"].items()}
CAUSES: Final = {name: CauseWords(**said) for name, said in _SAID["causes"].items()}


def slow_at(stage: str) -> str:
    """Return what a rank that is late in *stage* "is slow" at."""
    return STAGES[stage].slow if stage in STAGES else f"in {stage}"


def late_mark(kind: str) -> str:
    """Return what to say of a rank of this *kind* instead of "late"; empty if it is called late."""
    return LATE_KINDS[kind].mark if kind in LATE_KINDS else ""


def cause_in_short(cause: str, detail: str = "") -> str:
    """Return a cause with its detail in a few words, those of a newer exporter as they are."""
    known = CAUSES.get(cause)
    if known is None:
        return _plain(cause) + (f" ({_plain(detail)})" if detail else "")
    return known.short + (f" ({known.details.get(detail, _plain(detail))})" if detail else "")


def reasons_in_order(reasons: Iterable[str]) -> list[str]:
    """Return *reasons*, each before those that it explains; unknown ones are the last."""
    place = {name: index for index, name in enumerate(REASONS)}
    return sorted(set(reasons), key=lambda each: (place.get(each, len(place)), each))


def _plain(name: str) -> str:
    return name.replace("_", " ")
