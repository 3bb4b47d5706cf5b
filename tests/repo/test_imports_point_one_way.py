"""The rooms of the probe, and those of the exporter, build on one another in one direction."""

from collections import Counter
from graphlib import TopologicalSorter

from dashboards.board import BOARDS
from generators.listed.house import (
    CATALOG,
    PACKAGES,
    all_needs,
    modules,
    needs_of_modules,
    needs_of_rooms,
)

# Of the probe: a room may need those above it, and none below.
PROBE = (
    *("version", "guest", "wire", "measure", "torch_hooks", "process", "judge", "join", "report"),
    *("lines", "command_line", "check", "audit"),
    *(
        "collectives",
        "groups",
        "probe",
        "api",
        "integrations",
        "__main__",
    ),
)
MOST_MODULES = 14  # More names in one folder are no longer read at a glance.
SMALL = ("rank_probe", "dashboards", "generators", "alerts", "demo")


def test_no_two_modules_need_each_other() -> None:
    """Not even when they run; CycleError, if they do, names the modules."""
    assert all_needs(needs_of_modules(*PACKAGES))


def test_rooms_of_the_probe_are_in_order() -> None:
    """So whoever changes one reads only those that it builds on."""
    order = [f"rank_probe.{name}" for name in PROBE]
    taken = needs_of_rooms("rank_probe")

    assert set(taken) == set(order)
    for place, name in enumerate(order):
        assert taken[name] <= set(order[:place]), name


def test_rooms_are_small() -> None:
    """At most MOST_MODULES lie in one folder."""
    files = Counter(path.parent for path in modules(*SMALL).values())

    assert {str(folder): count for folder, count in files.items() if count > MOST_MODULES} == {}


def test_no_two_rooms_need_each_other() -> None:
    """CycleError, if they do, names the rooms."""
    order = list(TopologicalSorter(needs_of_rooms("exporter")).static_order())

    assert order.index("exporter.nvml") < order.index("exporter.nvml.readings")
    assert order.index("exporter.ranks") < order.index("exporter.live")
    assert order.index(CATALOG) < order.index("exporter.wiring")


def test_dashboards_need_only_what_they_share() -> None:
    """So whoever changes one reads no other."""
    needs = needs_of_rooms("dashboards")
    shared = {"dashboards.board", "dashboards.panels", "dashboards.shared_panels"}

    assert all(needs[f"dashboards.{board}"] <= shared for board in BOARDS)
