"""Tests of the bytes that a push sends."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from exporter.ingest.schema import parse
from rank_probe.wire.snapshot import SnapshotEncoder
from tests.exporter.snapshots import snapshot, verdict

LATE: Mapping[str, Any] = {
    "thread_states": [{"stage": "data", "state": "sleep", "share": 0.5, "place": ""}],
    "peer_figures": {"gc_ratio": [0.1, 0.2, 0.3]},
    "loader": "Corpus.__getitem__ (corpus.py:30)",
}
CHANGES: tuple[Mapping[str, Any], ...] = (
    {"sequence": 2, "steps": 110, "stage": "data"},
    {"stage_seconds": {"data": 13.0}, "verdict": verdict()},
    {"peer_group": "pp1"},
    {"rank_info": {"level": "detail"}, "push_failures": 1},
    {"lifecycle_seconds": {"init": 1.5}},
    LATE,
    {"finished": True},
    {},
)


def test_each_push_says_the_whole_state_as_it_is_now() -> None:
    """What was encoded for an earlier push is sent again only while it is still so."""
    encoder = SnapshotEncoder()
    for changes in CHANGES:
        taken, unknown_fields = parse(encoder.encode(snapshot(**changes)))

        assert (taken, unknown_fields) == (snapshot(**changes), 0)


def test_encoder_says_what_one_snapshot_says() -> None:
    """A dry run sends the same as a push."""
    encoder = SnapshotEncoder()
    encoder.encode(snapshot())

    assert encoder.encode(snapshot(steps=101)) == snapshot(steps=101).to_json()


@pytest.mark.parametrize("name", LATE)
def test_what_only_a_late_rank_says_is_left_out(name: str) -> None:
    """A healthy rank's push is not longer for it."""
    assert name in json.loads(snapshot(**LATE).to_json())
    assert name not in json.loads(snapshot(**{**LATE, name: type(LATE[name])()}).to_json())
