"""How much to time, as ordered by the operator through a file or the exporter."""

import logging
import os
from collections.abc import Mapping

from rank_probe.process.small_files import content
from rank_probe.wire.snapshot import DEFAULT_LEVEL, LEVELS

log = logging.getLogger("rank_probe")

# A longer file is not a single word, so it is the wrong one.
_LARGEST_BYTES = 64


class Control:
    """The level that is ordered now; only for the pusher thread.

    The file RANK_PROBE_CONTROL contains one word, a level, and overrides the exporter's answer.
    Content that is missing, unreadable or not a level is ignored, and logged once.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._path = environment.get("RANK_PROBE_CONTROL", "")
        self._answered = DEFAULT_LEVEL
        self._complained: set[str] = set()

    def level(self, answer: Mapping[str, object]) -> str:
        """Return the level to run at, after a push that was answered with *answer*.

        An answer without a level, for example if the exporter is away for a while, keeps the level
        of an earlier answer. Reads the file at most once per call.
        """
        asked = answer.get("level")
        if asked is not None:
            if isinstance(asked, str) and asked in LEVELS:
                self._answered = asked
            else:
                self._complain("the exporter's answer", f"it asks for level {str(asked)[:40]!r}")
        return self._from_file() or self._answered

    def _from_file(self) -> str | None:
        if not self._path:
            return None
        try:
            found = content(self._path, _LARGEST_BYTES, follows_links=True)
            word = found.strip().decode(errors="replace")
        except OSError as error:
            self._complain(self._path, str(error))
            return None
        if word in LEVELS:
            return word
        self._complain(self._path, f"it holds {word[:40]!r}")
        return None

    def _complain(self, source: str, why: str) -> None:
        if source not in self._complained:
            self._complained.add(source)
            levels = ", ".join(LEVELS)
            log.warning(
                "rank_probe: %s does not contain a level: %s; the levels are %s",
                source,
                why,
                levels,
            )
