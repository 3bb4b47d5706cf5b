"""The closed set of stages of a training step, and the phase that each belongs to."""

from typing import Final

# In step order: a step begins at the release, so the previous batch's optimizer comes first.
STAGES: Final = (
    "optimizer",
    "other",
    "checkpoint",
    "eval",
    "data",
    "h2d",
    "forward",
    "backward",
    "compute",
    "sync",
)

# Positions in STAGES: the clock counts in a flat list, one slot per stage.
OPTIMIZER, OTHER, CHECKPOINT, EVAL, DATA, H2D, FORWARD, BACKWARD, COMPUTE, SYNC = range(len(STAGES))

PHASE_OF: Final = {
    "optimizer": "compute",
    "other": "other",
    "checkpoint": "other",
    "eval": "other",
    "data": "data",
    "h2d": "data",
    "forward": "compute",
    "backward": "compute",
    "compute": "compute",
    "sync": "sync",
}
