"""The state of a job, in words and colours, on every dashboard."""

from typing import Final

from dashboards.panels import LATE_COLOUR, Override, fixed
from dashboards.panels import PEERS_COLOUR as GREY

ORANGE: Final = "#FF9830"
GREEN: Final = "#37872D"
BLUE: Final = "#5794F2"

# Most urgent first, as job:rankskew_state:info names them: the word for people, and its colour.
STATES: Final = {
    "hung": ("Hung", LATE_COLOUR),
    "exporter_down": ("Exporter down", ORANGE),
    "ranks_missing": ("Ranks missing", ORANGE),
    "starting": ("Starting", BLUE),
    "not_judgeable": ("Not judgeable", ORANGE),
    "slow_node": ("Slow node", LATE_COLOUR),
    "straggler": ("Straggler", LATE_COLOUR),
    "rotating": ("Rotating", ORANGE),
    "healthy": ("Healthy", GREEN),
    "finished": ("Finished", GREY),
    "no_probe": ("No probe", GREY),
}


def as_series(state: str) -> list[Override]:
    """Return the overrides for a series whose name is *state*."""
    word, colour = STATES[state]
    return [Override(id_val="displayName", value=word), fixed(colour)]


def as_values() -> Override:
    """Return the override that shows fields with the name of a state as its word and colour."""
    words = {
        state: {"text": word, "color": colour, "index": index}
        for index, (state, (word, colour)) in enumerate(STATES.items())
    }
    return Override(id_val="mappings", value=[{"type": "value", "options": words}])
