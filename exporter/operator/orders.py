"""The orders that commands post and the exporter takes; needs the standard library only."""

import json
from dataclasses import asdict, dataclass
from typing import Final, Literal

from rank_probe.wire.snapshot import MOST_PROFILED_STEPS

# Where to post orders: on the operator's socket; the first one on the ingest listener too.
CONTROL_PATH: Final = "/v1/control"
PROFILE_PATH: Final = "/v1/profile"
GPUS_PATH: Final = "/v1/gpus"

# Ranks push once a second, so by then both have the order of a profile.
AHEAD_SECONDS: Final = 4.0
# A profile without a peer on this node: for a person who goes to the peer's node first.
FAR_AHEAD_SECONDS: Final = 60.0

RELEASE_SECONDS: Final = 600.0
# Forgetting to resume costs a day of series, not all of them.
RELEASE_MAX_SECONDS: Final = 86400.0

# For pydantic: a misspelt field is an error.
STRICT: Final = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class Order:
    """Time *level* in all ranks of a job, or in one of them."""

    __pydantic_config__ = STRICT

    job_id: str
    level: Literal["off", "stages", "detail"]
    rank: int | None = None

    def to_json(self) -> bytes:
        """Return the body to post."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class ProfileOrder:
    """Profile *steps* steps of *rank* and its *peer*, the first of which is *start*.

    What is None is chosen: the costliest late rank, a healthy one of its group on the node, and a
    step that is about *ahead_seconds* ahead. With a *start* and no *peer*, one rank is alone.
    """

    __pydantic_config__ = STRICT

    job_id: str
    rank: int | None = None
    peer: int | None = None
    steps: int = 5
    start: int | None = None
    ahead_seconds: float = AHEAD_SECONDS

    def __post_init__(self) -> None:
        if not (0 < self.steps <= MOST_PROFILED_STEPS and 0 < self.ahead_seconds < 3600):
            raise ValueError(f"steps must be 1 to {MOST_PROFILED_STEPS}")

    def to_json(self) -> bytes:
        """Return the body to post."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class GpuOrder:
    """Do *action* with the GPUs; *seconds* is how long a release lasts.

    Raises ValueError unless *seconds* is above 0 and at most RELEASE_MAX_SECONDS.
    """

    __pydantic_config__ = STRICT

    action: Literal["status", "release", "resume", "forget"]
    seconds: float = RELEASE_SECONDS

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= RELEASE_MAX_SECONDS:
            raise ValueError(f"seconds must be above 0 and at most {RELEASE_MAX_SECONDS:.0f}")

    def to_json(self) -> bytes:
        """Return the body to post."""
        return json.dumps(asdict(self)).encode()
