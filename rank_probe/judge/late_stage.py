"""Whether this rank is named late, and in which stage: by the judge, else by the exporter."""

from collections.abc import Mapping
from typing import Any, Final

from rank_probe.judge.verdict import IS_DUTY, NODE, PAUSES, PERSISTENT
from rank_probe.wire.stages import STAGES, SYNC

# Those that may page: a mildly late rank is within the noise of a healthy job.
NAMED: Final = (PERSISTENT, PAUSES, NODE)
WORK: Final = tuple(stage for stage in STAGES if stage != STAGES[SYNC])


def late_stage(
    verdict: Mapping[str, Any] | None, rank: int, answer: Mapping[str, object]
) -> str | None:
    """Return the stage in which *rank* is late; None if it is not.

    *verdict*, that of the job's judge in the format of verdict.py, decides. Without one the
    exporter's last *answer* to a push does, which compares the ranks of its node only.
    """
    if verdict is None:
        said = answer.get("late")
        return said if isinstance(said, str) and said in WORK else None
    for each in verdict["late"]:
        if each["rank"] == rank and each["kind"] in NAMED and not each.get(IS_DUTY):
            return str(each["stage"])
    return None
