"""The orders that commands post and the exporter takes; needs the standard library only."""

import json
from dataclasses import asdict, dataclass
from typing import Final, Literal

# Where to post orders: on the operator's socket; the first one on the ingest listener too.
CONTROL_PATH: Final = "/v1/control"
GPUS_PATH: Final = "/v1/gpus"

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
class GpuOrder:
    """Do *action* with the GPUs; *seconds* is how long a release lasts.

    Raises ValueError unless *seconds* is above 0 and at most RELEASE_MAX_SECONDS.
    """

    __pydantic_config__ = STRICT

    action: Literal["status", "release", "resume"]
    seconds: float = RELEASE_SECONDS

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= RELEASE_MAX_SECONDS:
            raise ValueError(f"seconds must be above 0 and at most {RELEASE_MAX_SECONDS:.0f}")

    def to_json(self) -> bytes:
        """Return the body to post."""
        return json.dumps(asdict(self)).encode()
