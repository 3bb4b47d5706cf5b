"""A job that became slower without a late rank, as its judge tells it, and why."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from exporter.live.sentences import change_sentence
from rank_probe.judge.verdict import Change
from rankskew.diagnose.model import Finding
from rankskew.wording import counted


class WhyOnNode(NamedTuple):
    """The cause of a change by the past of one node: in one word, and in a sentence."""

    node: str
    cause: tuple[str, str]
    sentence: str


def slower(
    change: Change, sentence: str = "", why: Sequence[WhyOnNode] = (), facts: Iterable[str] = ()
) -> Finding:
    """Return the finding of *change*, said by *sentence* if the usual one does not do."""
    return Finding(
        "slower",
        sentence or change_sentence(change),
        peer_group=change.peer_group or None,
        stage=change.stage,
        since_seconds=change.since_seconds,
        facts=(*_causes(why), *facts),
    )


def _causes(why: Sequence[WhyOnNode]) -> list[str]:
    """Say each cause once, the one of most nodes first, with the figures of one node."""
    nodes: dict[tuple[str, str], list[WhyOnNode]] = {}
    for each in sorted(why):
        nodes.setdefault(each.cause, []).append(each)
    said = []
    for those in sorted(nodes.values(), key=lambda those: -len(those)):
        first, many = those[0], counted(len(those), "node")
        where = first.node if len(those) == 1 else f"{many}, such as {first.node}"
        said.append(f"Cause on {where}: {first.sentence}.")
    return said
