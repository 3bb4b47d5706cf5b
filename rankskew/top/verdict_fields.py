"""Late ranks, sets of them, and changes, as the verdict in an exporter's JSON has them."""

from collections.abc import Mapping
from typing import Any

from exporter.live.sentences import LateView
from rank_probe.judge.verdict import Change, Span, Together
from rankskew.client.fields import number, numbers, text, whole
from rankskew.top import causes
from rankskew.top.model import UNKNOWN


def read_late(said: Mapping[str, Any]) -> LateView | None:
    """Return the late rank in *said*, None if it has no number."""
    rank = whole(said.get("rank"))
    if rank is None:
        return None
    return LateView(
        rank=rank,
        peer_group=text(said.get("peer_group")) or "",
        stage=text(said.get("stage")) or UNKNOWN,
        kind=text(said.get("kind")) or "",
        ratio=number(said.get("ratio")) or 0.0,
        gpus_lost=number(said.get("gpus_lost")) or 0.0,
        late_for_seconds=number(said.get("late_for_seconds")) or 0.0,
        is_here=said.get("is_here") is True,
        costs_enough=said.get("costs_enough") is not False,
        cause=causes.from_json(said.get("cause")),
        every_steps=whole(said.get("every_steps")) or 0,
        pause_seconds=number(said.get("pause_seconds")) or 0.0,
        has_risen=said.get("has_risen") is True,
        gpus_by_stage=numbers(said.get("gpus_by_stage")),
    )


def read_change(said: Mapping[str, Any]) -> Change | None:
    """Return the change in *said*, None if the main figures lack."""
    ratio, since = number(said.get("ratio")), number(said.get("since_seconds"))
    if ratio is None or since is None:
        return None
    stage = text(said.get("stage")) or UNKNOWN
    return Change(
        peer_group=text(said.get("peer_group")) or "",
        stage=stage,
        ratio=ratio,
        since_seconds=since,
        step_ratio=number(said.get("step_ratio")) or 1.0,
        gpus=number(said.get("gpus")) or 0.0,
        slower=whole(said.get("slower")) or 0,
        slower_ranks=_ranks(said.get("slower_ranks")),
        slower_spans=_spans(said.get("slower_spans")),
        peers=whole(said.get("peers")) or 0,
        in_common=text(said.get("in_common")) or "",
    )


def read_together(said: Mapping[str, Any]) -> Together | None:
    """Return the set of late ranks in *said*, None if the main figures lack."""
    stage, ranks = text(said.get("stage")), whole(said.get("ranks"))
    since = number(said.get("since_seconds"))
    if stage is None or ranks is None or since is None:
        return None
    in_common = text(said.get("in_common")) or ""
    return Together(stage, ranks, since, _spans(said.get("spans")), in_common)


def _ranks(said: object) -> tuple[int, ...]:
    listed = said if isinstance(said, list) else ()
    return tuple(each for each in map(whole, listed) if each is not None)


def _spans(said: object) -> tuple[Span, ...]:
    pairs = map(_ranks, said if isinstance(said, list) else ())
    return tuple((pair[0], pair[1]) for pair in pairs if len(pair) == 2)
