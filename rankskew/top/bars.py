"""The bar of a step: a rank's own work by stage, then its wait for the others."""

from collections.abc import Collection, Mapping
from itertools import accumulate
from typing import Final

from rich.text import Text

from rank_probe.wire.stages import STAGES, SYNC
from rankskew.top.words import STAGE_STYLES

WAIT: Final = STAGES[SYNC]
OWN_BLOCK: Final = "█"
WAIT_BLOCK: Final = "░"


def bar(stage_seconds: Mapping[str, float] | None, longest: float, width: int) -> Text:
    """Draw a step; *width* characters stand for the *longest* step of the table."""
    drawn = Text(no_wrap=True)
    if not stage_seconds or longest <= 0:
        return drawn
    seconds = [max(0.0, stage_seconds.get(stage, 0.0)) for stage in STAGES]
    # Ends are rounded, not lengths, so that the errors do not add up.
    ends = [round(width * end / longest) for end in accumulate(seconds)]
    for stage, begin, end in zip(STAGES, [0, *ends], ends, strict=False):
        block = WAIT_BLOCK if stage == WAIT else OWN_BLOCK
        drawn.append(block * (end - begin), STAGE_STYLES[stage])
    return drawn


def legend(stages: Collection[str], coloured: bool) -> Text:
    """Explain the colours of *stages*, in step order; without colours, the two blocks."""
    if not coloured:
        return Text(f"{OWN_BLOCK} own work  {WAIT_BLOCK} waits for others")
    said = Text(style="bright_black")
    for stage in STAGES:
        if stage in stages:
            block = WAIT_BLOCK if stage == WAIT else OWN_BLOCK
            said.append(block * 2, STAGE_STYLES[stage])
            said.append(" waits for others  " if stage == WAIT else f" {stage}  ")
    said.rstrip()
    return said
