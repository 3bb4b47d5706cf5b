"""What ranks post is read as it was written, or refused."""

import dataclasses
import json
import zlib

import pytest

from rank_probe.audit.readings.facts import NotFacts, pack, unpack
from tests.rank_probe.audit.healthy import facts


def test_facts_arrive_as_they_were_posted() -> None:
    """Every field survives, with its type."""
    posted = facts(5)

    assert unpack(pack(posted)) == posted


def test_facts_are_small() -> None:
    """The store of 16,384 ranks holds tens of megabytes."""
    assert len(pack(facts(5))) < 2000


@pytest.mark.parametrize(
    "posted",
    [
        b"",
        b"nothing of ours",
        zlib.compress(b"[]"),
        zlib.compress(json.dumps({**dataclasses.asdict(facts(0)), "later": 1}).encode()),
        zlib.compress(b" " * 2**21 + json.dumps(dataclasses.asdict(facts(0))).encode()),
    ],
)
def test_anything_else_is_refused(posted: bytes) -> None:
    """What another release posts counts as not reported; a bomb is not unpacked."""
    with pytest.raises(NotFacts):
        unpack(posted)
