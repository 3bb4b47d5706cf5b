"""The schema of a pushed snapshot, and the one sentence that explains a refusal."""

import dataclasses
from collections.abc import Mapping
from copy import copy
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import ErrorDetails

from exporter.ingest.values import (
    Amount,
    At,
    Count,
    EventName,
    InfoValue,
    Label,
    LateKind,
    Level,
    LostApart,
    LostKind,
    Only,
    PeersFigure,
    Reason,
    Share,
    Stage,
    ThreadState,
)
from exporter.ranks.limits import NoRoom
from exporter.ranks.store import Forbidden, Superseded
from exporter.validation import NOT_JSON, SAME_RELEASE, sentence
from rank_probe.judge.verdict import (
    APART,
    IS_DUTY,
    MOST_CHANGES,
    MOST_GROUPS,
    MOST_LATE,
    MOST_PAUSES,
    MOST_SPANS,
    MOST_TOGETHER,
    Change,
    Late,
    Pause,
    Stall,
    Together,
    Verdict,
)
from rank_probe.wire.figures import FIGURES
from rank_probe.wire.snapshot import (
    MOST_EVENTS,
    MOST_LATE_LINES,
    MOST_LIMITATIONS,
    MOST_THREAD_STATES,
    RANK_INFO_LABELS,
    RUNTIME_INFO_LABELS,
    SCHEMA,
    Snapshot,
)
from rank_probe.wire.stages import STAGES

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


# What a field may be, by its type in the probe; one of another type must have its name below.
BY_TYPE: Final[Mapping[Any, Any]] = {
    bool: bool,
    int: Count,
    int | None: Count | None,
    float: Amount,
    float | None: Amount | None,
    dict[str, int]: dict[Stage, Count],
    dict[str, float]: dict[Stage, Amount],
    Mapping[str, float]: dict[Stage, Amount],
}
# What a field of this name may be, whatever its type: a name means the same wherever it occurs.
BY_NAME: Final[Mapping[str, Any]] = {
    "job_id": Label,
    "peer_group": Label,
    "world_size": Annotated[Count, Field(ge=1)],
    "stage": Stage,
    "level": Level,
    "loader": InfoValue,
    "no_join": InfoValue,
    "in_common": InfoValue,
    "at": At,
    "suspect": At,
    "schema": Literal[1],
    "join_coverage": Share | None,
    "rank_info": Annotated[dict[str, InfoValue], Only(RANK_INFO_LABELS)],
    "runtime_info": Annotated[dict[str, InfoValue], Only(RUNTIME_INFO_LABELS)],
    "peer_figures": Annotated[dict[str, PeersFigure], Only(FIGURES)],
    "kind": LateKind,
    "reason": Reason | None,
    "ranks": Annotated[dict[Label, Count], Field(max_length=MOST_GROUPS)],
    "gpus_lost": dict[LostKind, Amount],
}


def limits(of: type, **more: Any) -> dict[str, Any]:
    """Return the limits of each field of the dataclass *of*, from *more*, BY_NAME or BY_TYPE.

    Raises KeyError for a field of the probe that would have no limit.
    """
    by_name = {**BY_NAME, **more}
    return {
        name: by_name[name] if name in by_name else BY_TYPE[kind]
        for name, kind in get_type_hints(of).items()
    }


def _part(name: str, of_each: Mapping[str, Any], **later: Any) -> Any:
    """Return the model of an object in a snapshot, which must have all but the *later* fields.

    Those came with a later release, and have the values that stand for an earlier one. Unknown
    fields of a newer judge are dropped, so that its job stays visible.
    """
    fields: dict[str, Any] = {
        field: (limit, later.get(field, ...)) for field, limit in of_each.items()
    }
    return create_model(name, __config__=ConfigDict(strict=True, extra="ignore"), **fields)


def _as_sent(part: Any) -> Any:
    """Return the *part* as the dict that a Snapshot has."""
    return Annotated[part, AfterValidator(BaseModel.model_dump)]


def _at_most(number: int, part: Any) -> Any:
    return Annotated[list[part], Field(max_length=number)]


_LATE: Final = _part(
    "LateBody",
    limits(Late) | {IS_DUTY: bool},
    every_steps=0,
    pause_seconds=0.0,
    has_risen=False,
    is_duty=False,
    at={},
)
_SPANS: Final = _at_most(MOST_SPANS, Annotated[list[Count], Field(min_length=2, max_length=2)])
_CHANGE: Final = _part(
    "ChangeBody",
    limits(Change, slower_ranks=_at_most(MOST_LATE, Count), slower_spans=_SPANS),
    step_ratio=1.0,
    gpus=0.0,
    slower=0,
    slower_ranks=[],
    slower_spans=[],
    peers=0,
    in_common="",
)
_TOGETHER: Final = _part("TogetherBody", limits(Together, ranks=Count, spans=_SPANS))
_PAUSE: Final = _part("PauseBody", limits(Pause, rank=Count | None))
_STALL: Final = _part("StallBody", limits(Stall))
_VERDICT: Final = _part(
    "VerdictBody",
    limits(
        Verdict,
        late=_at_most(MOST_LATE, _LATE),
        changes=_at_most(MOST_CHANGES, _CHANGE),
        together=_at_most(MOST_TOGETHER, _TOGETHER),
        pauses=_at_most(MOST_PAUSES, _PAUSE),
        stalls=_at_most(len(STAGES) + 1, _STALL),
    )
    | {APART: dict[LostApart, Amount]},
    together=[],
    pauses=[],
    stalls=[],
    lost_apart={},
    suspect={},
)
_LINE: Final = _part("LateLineBody", {"stage": Stage, "place": Label, "share": Share})
_STATE: Final = _part(
    "ThreadStateBody", {"stage": Stage, "state": ThreadState, "share": Share, "place": InfoValue}
)
_EVENT: Final = _part(
    "EventBody",
    {
        "number": Count,
        "event": EventName,
        "began_timestamp_seconds": Amount,
        "seconds": Amount | None,
    },
)
_SNAPSHOT: Final = limits(
    Snapshot,
    verdict=_as_sent(_VERDICT) | None,
    late_lines=_at_most(MOST_LATE_LINES, _as_sent(_LINE)),
    lifecycle_events=_at_most(MOST_EVENTS, _as_sent(_EVENT)),
    thread_states=_at_most(MOST_THREAD_STATES, _as_sent(_STATE)),
    limitations=_at_most(MOST_LIMITATIONS, Label),
)
# The probe's Snapshot with limits, and its defaults. Fields and keys may be added within a schema;
# a new stage, level or kind needs a new schema.
SnapshotBody: Final[Any] = dataclasses.make_dataclass(
    "SnapshotBody",
    [(each.name, _SNAPSHOT[each.name], copy(each)) for each in dataclasses.fields(Snapshot)],
    namespace={
        "__doc__": Snapshot.__doc__,
        "__pydantic_config__": ConfigDict(strict=True, extra="allow"),
    },
)

_BODY: Final = TypeAdapter[Any](SnapshotBody)
_NAMES: Final = tuple(each.name for each in dataclasses.fields(Snapshot))
_values: Final = attrgetter(*_NAMES)


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
    if valid.rank >= valid.world_size:
        raise Refused(
            "invalid",
            f"The snapshot says rank {valid.rank}, which is outside a world of "
            f"{valid.world_size}; check RANK and WORLD_SIZE.",
        )
    return Snapshot(*_values(valid)), len(unknown) + len(vars(valid)) - len(_NAMES)


def _refusal(error: ErrorDetails) -> Refused:
    """Return the refusal for the first error that pydantic found."""
    if error["type"] == "json_invalid":
        return Refused("malformed", NOT_JSON)
    if error["type"] == "literal_error":
        return Refused("invalid", f"This exporter reads schema {SCHEMA} only; {SAME_RELEASE}.")
    return Refused("invalid", sentence(error, "The snapshot"))
