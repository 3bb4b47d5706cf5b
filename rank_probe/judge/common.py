"""What late ranks have in common that no other rank has: a node, a rack, a driver."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from rank_probe.judge.verdict import MOST_SPANS, NODE, PERSISTENT, Late, Span, Together

# The facts known of each rank, by name.
Facts = Mapping[int, Mapping[str, str]]

# Facts besides the user's labels: the node is more telling than a label, AFTER_LABELS are less.
BEFORE_LABELS: Final = ("node",)
AFTER_LABELS: Final = ("GPU model", "PCIe", "driver", "image", "torch")
# A set of ranks may have several values of a fact in common, but at most half as many as ranks.
MOST_VALUES: Final = 4
# As much as an exporter accepts.
MOST_CHARACTERS: Final = 128
# Late ranks with onsets at most this far apart became late together. The share is of their age,
# since old onsets are known less precisely.
APART_SECONDS, APART_SHARE = 10.0, 0.1
# More than this share of a job's ranks are a set, whether or not they have anything in common.
MANY_SHARE: Final = 1 / 3


def in_common(those: Collection[int], others: Collection[int], facts: Facts) -> str:
    """Return a fact that *those* ranks share and the *others* lack, such as `rack r12`.

    It may have several values, such as `node n1 or n2`. Empty if nothing sets *those* apart, or if
    the facts of some rank are not known.
    """
    if len(those) < 2 or not others or not facts.keys() >= {*those, *others}:
        return ""
    found = []
    for name in _names(facts[min(those)]):
        values = {facts[rank].get(name, "") for rank in those}
        said = f"{name} {' or '.join(sorted(values))}"
        most = min(MOST_VALUES, len(those) // 2)
        if "" in values or len(values) > most or len(said) > MOST_CHARACTERS:
            continue
        if values.isdisjoint(facts[rank].get(name, "") for rank in others):
            found.append((len(values), said))
    return min(found, key=lambda each: each[0])[1] if found else ""


def together(late: Sequence[Late], ranks: Collection[int], facts: Facts) -> Iterator[Together]:
    """Yield the sets of *late* ranks in a job with these *ranks*, the largest first.

    A set has something in common that no other rank has, or is more than MANY_SHARE of the job.
    """
    for those in sorted(_alike(late), key=len, reverse=True):
        named = sorted(each.rank for each in those)
        shared = in_common(named, set(ranks) - set(named), facts)
        if shared or len(named) > max(MANY_SHARE * len(ranks), 1):
            since = max(each.since_seconds for each in those)
            yield Together(those[0].stage, len(named), since, spans_of(named), shared)


def _alike(late: Iterable[Late]) -> Iterator[list[Late]]:
    """Yield those that became late at the same time in the same stage."""
    by_stage: dict[str, list[Late]] = {}
    for each in sorted(late, key=lambda each: each.since_seconds):
        if each.kind in (PERSISTENT, NODE):
            by_stage.setdefault(each.stage, []).append(each)
    for those in by_stage.values():
        some = those[:1]
        for before, each in pairwise(those):
            apart = max(APART_SECONDS, APART_SHARE * each.since_seconds)
            if each.since_seconds - before.since_seconds > apart:
                yield some
                some = []
            some.append(each)
        yield some


def spans_of(ranks: Sequence[int]) -> tuple[Span, ...]:
    """Return sorted *ranks* as spans (first, last) without gaps; empty if there are too many."""
    if not ranks:
        return ()
    gaps = [(a, b) for a, b in pairwise(ranks) if b != a + 1]
    firsts, lasts = [ranks[0], *(b for _, b in gaps)], [*(a for a, _ in gaps), ranks[-1]]
    found = tuple(zip(firsts, lasts, strict=True))
    return found if len(found) <= MOST_SPANS else ()


def _names(facts: Mapping[str, str]) -> list[str]:
    """Return the names of *facts*, the most telling first."""
    labels = sorted(facts.keys() - {*BEFORE_LABELS, *AFTER_LABELS})
    return [*BEFORE_LABELS, *labels, *AFTER_LABELS]
