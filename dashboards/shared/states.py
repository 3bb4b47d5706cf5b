"""The state of a job, in words and colours, on every dashboard."""

from typing import Final

from dashboards.shared.panels import Override, fixed
from exporter.vocabulary import words

ORANGE: Final = words.COLOURS["orange"].dashboard
GREEN: Final = words.COLOURS["green"].dashboard
BLUE: Final = words.COLOURS["blue"].dashboard

# Most urgent first, as job:rankskew_state:info names them: the word for people, and its colour.
STATES: Final = {
    name: (state.word, words.COLOURS[state.colour].dashboard)
    for name, state in words.STATES.items()
}


def as_series(state: str) -> list[Override]:
    """Return the overrides for a series whose name is *state*."""
    word, colour = STATES[state]
    return [Override(id_val="displayName", value=word), fixed(colour)]
