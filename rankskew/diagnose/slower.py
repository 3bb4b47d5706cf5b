"""A job that became slower without a late rank, as its judge tells it."""

from collections.abc import Iterable

from exporter.live.sentences import change_sentence
from rank_probe.judge.verdict import Change
from rankskew.diagnose.model import Finding


def slower(change: Change, sentence: str = "", facts: Iterable[str] = ()) -> Finding:
    """Return the finding of *change*, said by *sentence* if the usual one does not do."""
    return Finding(
        "slower",
        sentence or change_sentence(change),
        peer_group=change.peer_group or None,
        stage=change.stage,
        since_seconds=change.since_seconds,
        facts=tuple(facts),
    )
