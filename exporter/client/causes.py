"""The cause of a late rank as its exporter tells it: in its JSON, and as series of a Prometheus."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from exporter.causes.model import Cause, Guess
from exporter.client.fields import mapping, number, objects, text
from exporter.client.prometheus import Sample

# A late rank has one of the first two, and a figure of its own and one of its peers, or none.
INFO: Final = "rankskew_late_cause_info"
SHARE: Final = "rankskew_late_cause_share_ratio"
FIGURE: Final = "rankskew_late_cause_figure"
SERIES: Final = "rankskew_late_cause_(info|share_ratio|figure)"


def from_json(said: Any) -> Cause | None:
    """Return the cause of an entry of a verdict's late ranks, None if there is none yet."""
    fields = mapping(said)
    cause = text(fields.get("cause"))
    if not cause:
        return None
    return Cause(
        cause=cause,
        detail=text(fields.get("detail")) or "",
        share=number(fields.get("share")) or 0.0,
        sentence=text(fields.get("sentence")) or "",
        first_action=text(fields.get("first_action")) or "",
        figure=text(fields.get("figure")) or "",
        value=number(fields.get("value")),
        peers_value=number(fields.get("peers_value")),
        others=tuple(map(_guess, objects(fields.get("others")))),
    )


def _guess(said: Mapping[str, Any]) -> Guess:
    return Guess(
        cause=text(said.get("cause")) or "",
        detail=text(said.get("detail")) or "",
        share=number(said.get("share")) or 0.0,
        sentence=text(said.get("sentence")) or "",
    )


def from_series(samples: Mapping[str, Sequence[Sample]]) -> dict[str, Cause]:
    """Return the causes in the *samples* of a job, by rank."""
    shares = {each["rank"]: each.value for each in samples.get(SHARE, ())}
    figures = {(each["rank"], each["of"]): each.value for each in samples.get(FIGURE, ())}
    return {
        each["rank"]: Cause(
            cause=each["cause"],
            detail=each["detail"],
            share=shares.get(each["rank"], 0.0),
            sentence=each["sentence"],
            first_action=each["first_action"],
            figure=each["figure"],
            value=figures.get((each["rank"], "rank")),
            peers_value=figures.get((each["rank"], "peers")),
        )
        for each in samples.get(INFO, ())
    }


def short(cause: Cause) -> str:
    """Return its name for a cell: `input: slow reads`."""
    name = f"{cause.cause}: {cause.detail}" if cause.detail else cause.cause
    return name.replace("_", " ")


def told(cause: Cause) -> str:
    """Return it in a sentence, with the share of the delay that it accounts for."""
    share = f" It accounts for {cause.share:.0%} of the delay." if cause.share else ""
    return f"Cause: {cause.sentence.removesuffix('.')}.{share}"
