"""The schema of a pushed snapshot, and the one sentence that explains a refusal."""

import dataclasses
from collections.abc import Mapping
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from exporter.ingest.values import (
    Count,
    EventName,
    Gpus,
    InfoValue,
    Label,
    LateKind,
    Level,
    LostKind,
    Only,
    PeersFigure,
    Ratio,
    Reason,
    Seconds,
    Share,
    Stage,
    ThreadState,
)
from exporter.ranks.limits import NoRoom
from exporter.ranks.store import Forbidden, Superseded
from exporter.validation import NOT_JSON, SAME_RELEASE, sentence, wrong
from rank_probe.figures import FIGURES
from rank_probe.snapshot import (
    DEFAULT_LEVEL,
    LIFECYCLE,
    MOST_EVENTS,
    MOST_LATE_LINES,
    MOST_THREAD_STATES,
    RANK_INFO_LABELS,
    RUNTIME_INFO_LABELS,
    SCHEMA,
    Snapshot,
)
from rank_probe.verdict import MOST_CHANGES, MOST_GROUPS, MOST_LATE

# Every result of a push, and its HTTP status.
RESULTS: Final = {
    "accepted": 200,
    "ignored": 200,  # Not newer than the held snapshot: harmless.
    "malformed": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "superseded": 409,
    "oversized": 413,
    "invalid": 422,
    "no_room": 429,
    "turned_away": 503,  # With its connection, before anything was read.
}

RESULT_OF: Final[Mapping[type[Exception], str]] = {
    Forbidden: "forbidden",
    Superseded: "superseded",
    NoRoom: "no_room",
}


class Refused(Exception):
    """A push that is refused: *result* is a key of RESULTS, the text is for the caller."""

    def __init__(self, result: str, sentence: str) -> None:
        super().__init__(sentence)
        self.result = result


class _Said(BaseModel):
    # Unknown fields of a newer judge are dropped, so that its job is still visible.
    model_config = ConfigDict(strict=True, extra="ignore")


class LateBody(_Said):
    """rank_probe.verdict.Late with limits."""

    rank: Count
    peer_group: Label
    stage: Stage
    kind: LateKind
    ratio: Ratio
    gpus: dict[Stage, Gpus]
    since_seconds: Seconds
    steps: Count
    confidence: Ratio


class ChangeBody(_Said):
    """rank_probe.verdict.Change with limits."""

    peer_group: Label
    stage: Stage
    ratio: Ratio
    since_seconds: Seconds


class VerdictBody(_Said):
    """rank_probe.verdict.Verdict with limits; a test keeps these three in step with the probe."""

    step: Count
    ranks: Annotated[dict[Label, Count], Field(max_length=MOST_GROUPS)]
    absent: Count
    reason: Reason | None
    step_seconds: Seconds | None
    slowdown: Ratio | None
    gpus_lost: dict[LostKind, Gpus]
    rotating: dict[Stage, Gpus]
    late: Annotated[list[LateBody], Field(max_length=MOST_LATE)]
    changes: Annotated[list[ChangeBody], Field(max_length=MOST_CHANGES)]


class LateLineBody(_Said):
    """One of a Snapshot's *late_lines*, with limits."""

    stage: Stage
    place: Label
    share: Share


class ThreadStateBody(_Said):
    """One of a Snapshot's *thread_states*, with limits."""

    stage: Stage
    state: ThreadState
    share: Share
    place: InfoValue


class EventBody(_Said):
    """One of a Snapshot's *lifecycle_events*, with limits."""

    number: Count
    event: EventName
    began_timestamp_seconds: Seconds
    seconds: Seconds | None


def _as_sent(said: _Said) -> dict[str, Any]:
    return said.model_dump()


@dataclass(config=ConfigDict(strict=True, extra="allow"), frozen=True)
class SnapshotBody:
    """rank_probe.snapshot.Snapshot with limits; a test keeps the two in step.

    Fields and keys may be added within a schema; a new stage, level or kind needs a new schema.
    """

    job_id: Label
    peer_group: Label
    rank: Count
    world_size: Annotated[Count, Field(ge=1)]
    attempt: Count
    pid: Count
    started_timestamp_seconds: Seconds
    sequence: Count
    heartbeat_timestamp_seconds: Seconds
    steps: Count
    stage_seconds: dict[Stage, Seconds]
    busy_seconds: Seconds
    busy_seconds_squared: Seconds
    stage: Stage
    stage_elapsed_seconds: Seconds
    finished: bool = False
    sync_floor_seconds: Seconds | None = None
    last_step_timestamp_seconds: Seconds | None = None
    probe_errors: Count = 0
    push_failures: Count = 0
    rank_info: Annotated[dict[str, InfoValue], Only(RANK_INFO_LABELS)] = Field(default_factory=dict)
    runtime_info: Annotated[dict[str, InfoValue], Only(RUNTIME_INFO_LABELS)] = Field(
        default_factory=dict
    )
    stage_host_seconds: dict[Stage, Seconds] = Field(default_factory=dict)
    dropped_steps: Count = 0
    samples: Count | None = None
    tokens: Count | None = None
    padding_tokens: Count | None = None
    gc_pause_seconds: Seconds | None = None
    cuda_memory_allocated_bytes: Count | None = None
    cuda_memory_reserved_bytes: Count | None = None
    cuda_memory_peak_bytes: Count | None = None
    cuda_alloc_retries: Count | None = None
    lifecycle_seconds: Annotated[dict[str, Seconds], Only(LIFECYCLE)] = Field(default_factory=dict)
    level: Level = DEFAULT_LEVEL
    paced_steps: dict[Stage, Count] = Field(default_factory=dict)
    wait_caused_seconds: dict[Stage, Seconds] = Field(default_factory=dict)
    group_wait_seconds: Seconds | None = None
    joined_seconds: Seconds | None = None
    join_coverage: Share | None = None
    verdict: Annotated[VerdictBody, AfterValidator(_as_sent)] | None = None
    verdict_age_seconds: Seconds | None = None
    block_steps: Count = 0
    block_seconds: dict[Stage, Seconds] = Field(default_factory=dict)
    late_lines: Annotated[
        list[Annotated[LateLineBody, AfterValidator(_as_sent)]], Field(max_length=MOST_LATE_LINES)
    ] = Field(default_factory=list)
    lifecycle_events: Annotated[
        list[Annotated[EventBody, AfterValidator(_as_sent)]], Field(max_length=MOST_EVENTS)
    ] = Field(default_factory=list)
    thread_states: Annotated[
        list[Annotated[ThreadStateBody, AfterValidator(_as_sent)]],
        Field(max_length=MOST_THREAD_STATES),
    ] = Field(default_factory=list)
    peer_figures: Annotated[dict[str, PeersFigure], Only(FIGURES)] = Field(default_factory=dict)
    loader: InfoValue = ""
    schema: Literal[1] = SCHEMA

    @model_validator(mode="after")
    def _rank_is_in_the_world(self) -> Self:
        if self.rank >= self.world_size:
            raise wrong(
                f"says rank {self.rank}, which is outside a world of {self.world_size}; "
                "check RANK and WORLD_SIZE"
            )
        return self


_BODY: Final = TypeAdapter(SnapshotBody)
_FIELDS: Final = frozenset(field.name for field in dataclasses.fields(Snapshot))
_values: Final = attrgetter(*(field.name for field in dataclasses.fields(Snapshot)))


def parse(body: bytes) -> tuple[Snapshot, int]:
    """Return the snapshot in *body*, and how many of its fields are unknown here.

    Raises Refused, with one sentence for the caller.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Refused(
            "malformed", "The body is not UTF-8; send the snapshot as UTF-8 JSON."
        ) from error
    unknown: list[str] = []
    try:
        valid = _BODY.validate_json(text, context=unknown)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_input=False)[0]) from error
    return Snapshot(*_values(valid)), len(unknown) + len(vars(valid).keys() - _FIELDS)


def _refusal(error: ErrorDetails) -> Refused:
    """Return the refusal for the first error that pydantic found."""
    if error["type"] == "json_invalid":
        return Refused("malformed", NOT_JSON)
    if error["type"] == "literal_error":
        return Refused("invalid", f"This exporter reads schema {SCHEMA} only; {SAME_RELEASE}.")
    return Refused("invalid", sentence(error, "The snapshot"))
