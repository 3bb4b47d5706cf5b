"""A job whose ranks all became slower is explained by the past of this node, if that tells it."""

import re
from dataclasses import replace
from typing import Any

import pytest

from exporter.causes.model import Cause
from rank_probe.judge.verdict import Change
from tests.exporter.evidence.node import FakeNode
from tests.exporter.snapshots import verdict

# At three quarters of the clock all takes four thirds of the time.
SLOWER = Change("all", "forward", 4 / 3, since_seconds=60.0)


def judged(*changes: Change) -> dict[str, Any]:
    """Return what ranks repeat while the judge tells these."""
    return {"verdict": verdict(late=(), changes=changes), "verdict_age_seconds": 0.0}


def throttled(before: int = 120, since: int = 60, megahertz: int = 1_425) -> FakeNode:
    """Return a node whose GPUs have had a lower clock for so many seconds."""
    found = FakeNode(4, 4)
    found.run(before)
    found.gpus = [replace(gpu, sm_clock_megahertz=megahertz) for gpu in found.gpus]
    found.run(since)
    return found


def told(found: FakeNode, change: Change = SLOWER) -> Cause | None:
    """Return the cause once the judge has told *change* for a few seconds."""
    found.run(4, **judged(change))
    return found.changes.of("llama", change)


def test_clocks_of_all_gpus_explain_it() -> None:
    """With both figures, of before the onset and since."""
    cause = told(throttled())

    assert cause is not None
    assert (cause.cause, cause.detail) == ("slow_device", "clocks")
    assert (cause.value, cause.peers_value) == pytest.approx((1.425e9, 1.9e9), rel=0.01)
    assert re.fullmatch(r"the GPUs' SM clock is 1\.4\d GHz, before 1\.\d\d", cause.sentence)
    assert cause.first_action == ""


@pytest.mark.parametrize(
    ("found", "change"),
    [
        pytest.param(FakeNode(0, 0), SLOWER, id="no rank here"),
        pytest.param(throttled(megahertz=1_900), SLOWER, id="nothing is different"),
        pytest.param(throttled(), replace(SLOWER, ratio=2.0), id="more than the clock explains"),
        pytest.param(throttled(), replace(SLOWER, stage="data"), id="not on the GPU"),
        pytest.param(throttled(), replace(SLOWER, peer_group="pp1"), id="ranks of other nodes"),
        pytest.param(throttled(), replace(SLOWER, slower=3), id="some of the ranks"),
        pytest.param(throttled(before=0), SLOWER, id="an exporter without a past"),
        pytest.param(throttled(since=20), replace(SLOWER, since_seconds=20.0), id="too early"),
    ],
)
def test_node_that_cannot_tell_says_nothing(found: FakeNode, change: Change) -> None:
    assert told(found, change) is None


def test_cause_stays_until_the_change_is_over() -> None:
    """The onset leaves the memory of the evidence after half an hour; the figures stay as well."""
    found = throttled()
    first = told(found)
    found.gpus = [replace(gpu, sm_clock_megahertz=1_800) for gpu in found.gpus]
    found.run(60, **judged(replace(SLOWER, since_seconds=120.0)))

    assert first is not None
    assert found.changes.of("llama", SLOWER) == first
    found.run(4, **judged())
    assert found.changes.of("llama", SLOWER) is None
