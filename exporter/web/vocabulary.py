"""The vocabulary for the live page: what vocabulary.js and vocabulary.css consist of."""

import json
from collections.abc import Mapping
from typing import Any, Final

from exporter.vocabulary import words
from rank_probe.wire.stages import STAGES, SYNC

WAIT: Final = STAGES[SYNC]


def script() -> str:
    """Return the names and words as constants of a module."""
    constants: Mapping[str, Any] = {
        "STATES": {
            name: {"word": state.word, "colour": state.colour}
            for name, state in words.STATES.items()
        },
        "STAGES": list(words.STAGES),
        "MARKS": {name: kind.mark for name, kind in words.LATE_KINDS.items() if kind.mark},
        "CAUSES": {
            name: {"short": cause.short, "details": dict(cause.details)}
            for name, cause in words.CAUSES.items()
        },
    }
    return "".join(
        f"export const {name} = {json.dumps(said, ensure_ascii=False)};\n"
        for name, said in constants.items()
    )


def style() -> str:
    """Return the colour of each stage; live.css draws the wait, in stripes of its own."""
    return "".join(
        f":root {{ --{name}: {stage.colour}; }}\n"
        f".{name} {{ background: var(--{name}); }} path.{name} {{ fill: var(--{name}); }}\n"
        for name, stage in words.STAGES.items()
        if name != WAIT
    )
