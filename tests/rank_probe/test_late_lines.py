"""Tests of when the probe samples its rank: while that is named late, and only then."""

import time
from typing import Any

import pytest

from rank_probe.join.join import Join
from rank_probe.lines import sampling
from tests.exporter.snapshots import verdict
from tests.rank_probe.probes import probe_of_rank_2, told


def test_late_rank_reports_lines_while_it_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge's verdict starts the sampling; its end, an order and the rank's own end stop it."""
    said: list[Any] = [None]
    monkeypatch.setattr(Join, "verdict", property(lambda self: said[0]))
    monkeypatch.setattr(sampling, "INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr(sampling, "LOOK_SECONDS", 0.001)
    probe = probe_of_rank_2()

    def is_sampled() -> bool:
        assert probe.snapshot() is not None
        return probe.stacks._sampling is not None

    assert not is_sampled()
    said[0] = verdict()
    assert is_sampled()
    lines: list[dict[str, Any]] = []
    while not lines:  # The timeout of the test ends it.
        time.sleep(0.05)
        lines = told(probe).late_lines
    assert lines[0]["place"].startswith("test_late_rank_reports_lines_while_it_is_late (")
    while not (states := told(probe).thread_states):
        time.sleep(0.05)
    assert states[0]["state"] == "sleep"
    said[0] = verdict(late=())
    assert not is_sampled()
    assert told(probe).late_lines == told(probe).thread_states == []
    said[0] = verdict()
    assert is_sampled()
    probe._after_push({"level": "off"})
    assert not is_sampled()
    probe._after_push({"level": "stages"})
    assert is_sampled()
    probe.finish()
    taken = probe.stacks.samples
    time.sleep(0.02)
    assert probe.stacks.samples <= taken + 1  # The one that was being taken.


def test_exporter_tells_a_rank_without_a_judge() -> None:
    """The answer to a push counts until the next one."""
    probe = probe_of_rank_2()
    for answer in ({"late": "data"}, {}):
        probe._after_push(answer)
        probe.snapshot()
        assert (probe.stacks._sampling is not None) is bool(answer)
