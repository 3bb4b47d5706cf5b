"""The state of a job in one word, from a closed set that every part of Rankskew uses."""

from typing import Final

from exporter.vocabulary import words

HUNG, EXPORTER_DOWN, RANKS_MISSING = "hung", "exporter_down", "ranks_missing"
STARTING, NOT_JUDGEABLE = "starting", "not_judgeable"
SLOW_NODE, STRAGGLER, ROTATING = "slow_node", "straggler", "rotating"
PAUSED, SHARED = "pause", "shared"
HEALTHY, FINISHED, NO_PROBE = "healthy", "finished", "no_probe"
STANDS_STILL, UNUSED_GPUS = "stands_still", "unused_gpus"

# What people call each state, the most urgent first.
WORDS: Final = {name: state.word for name, state in words.STATES.items()}
STATES: Final = tuple(WORDS)
