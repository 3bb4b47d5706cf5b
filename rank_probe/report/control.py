"""How much to time, as ordered by the operator through the exporter."""

import logging
from collections.abc import Mapping

from rank_probe.wire.snapshot import DEFAULT_LEVEL, LEVELS

log = logging.getLogger("rank_probe")


class Control:
    """The level that is ordered now; only for the pusher thread.

    An order that is not a level is ignored, and logged once.
    """

    def __init__(self) -> None:
        self._answered = DEFAULT_LEVEL
        self._complained = False

    def level(self, answer: Mapping[str, object]) -> str:
        """Return the level to run at, after a push that was answered with *answer*.

        An answer without a level, for example if the exporter is away for a while, keeps the level
        of an earlier answer.
        """
        asked = answer.get("level")
        if isinstance(asked, str) and asked in LEVELS:
            self._answered = asked
        elif asked is not None and not self._complained:
            self._complained = True
            log.warning(
                "rank_probe: the exporter's answer does not contain a level: it asks for level "
                "%.42r; the levels are %s",
                str(asked),
                ", ".join(LEVELS),
            )
        return self._answered
