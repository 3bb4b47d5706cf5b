"""CPU time is exposed by mode, and never seems to run backwards by a little."""

from typing import NamedTuple

import psutil
import pytest

from exporter.collectors.node_cpu import NodeCpuCollector
from tests.exporter.collectors.expose import expose, series


class Times(NamedTuple):
    """What psutil returns on an old kernel: fewer modes."""

    user: float
    idle: float
    guest: float = 0.0


def test_this_node_has_cpu_time() -> None:
    """On any Linux node the common modes are there, in seconds."""
    page = expose(NodeCpuCollector())

    for mode in ("user", "system", "idle"):
        assert f'rankskew_node_cpu_seconds_total{{mode="{mode}"}} ' in page


def test_modes_do_not_overlap_and_missing_ones_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guest time, which the kernel counts in user already, is not shown twice."""
    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(user=5.0, idle=7.5, guest=2.0))

    assert series(expose(NodeCpuCollector())) == [
        'rankskew_node_cpu_seconds_total{mode="user"} 5.0',
        'rankskew_node_cpu_seconds_total{mode="idle"} 7.5',
    ]


def test_small_step_back_is_not_taken_for_a_counter_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's idle time may dip; a rate must not explode for it. A real reset passes."""
    readings = iter([100.0, 99.5, 101.0, 3.0])
    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(user=1.0, idle=next(readings)))
    collector = NodeCpuCollector()
    idle = [series(expose(collector))[1].split()[-1] for _ in range(4)]

    assert idle == ["100.0", "100.0", "101.0", "3.0"]
