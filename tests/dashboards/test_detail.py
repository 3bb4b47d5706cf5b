"""Every panel says which detail of the exporters it needs; the others need none."""

import json
import re
from typing import Any

import pytest

from dashboards.detail import collectors, detail_of, say_what_it_needs
from exporter.collectors.catalog import COLLECTORS
from exporter.scrape.levels import LEVELS, PARTS
from tests.dashboards.dashboard_files import JSON_FILES, metric_names, panels

FLAG = re.compile(r"--series\.detail=([a-z_,0-9]+)")
CORE = {*LEVELS, *PARTS}


def is_recorded(name: str) -> bool:
    """Rules record what has a colon in its name."""
    return ":" in name


def panel(*exprs: str) -> dict[str, Any]:
    """A panel with these queries."""
    return {
        "description": "What it shows.",
        "targets": [{"expr": expr} for expr in exprs],
        "fieldConfig": {"defaults": {"noValue": "Nothing"}},
    }


@pytest.mark.parametrize("path", JSON_FILES, ids=lambda path: path.stem)
def test_panel_says_which_detail_it_needs(path: Any) -> None:
    """Whoever sees an empty panel reads which flag fills it, with the names of collectors."""
    names = {entry.name for entry in COLLECTORS}
    for each in panels(path):
        read = {name for target in each["targets"] for name in metric_names(target["expr"])}
        detail = {name for name in read - CORE if not is_recorded(name)}
        said = FLAG.findall(each["description"])

        assert not detail or said, (each["title"], detail)
        assert {name for flag in said for name in flag.split(",")} <= names
        assert {collectors()[name] for name in detail} <= set(
            ",".join(said).split(",") if said else ()
        )


def test_first_rows_need_no_detail() -> None:
    """What a person sees first is there by default."""
    for path in JSON_FILES:
        top = [each for each in panels(path) if each["gridPos"]["y"] == 0]

        assert top
        assert "--series.detail" not in json.dumps(top)


def test_panel_of_detail_says_that_it_needs_it() -> None:
    """In its description, and where nothing is shown."""
    one = panel("rankskew_gpu_dram_active_ratio{x}", "rate(rankskew_node_cpu_seconds_total[1m])")
    say_what_it_needs(one)

    flag = "--series.detail=gpu_activity,node_cpu"
    assert one["description"] == f"What it shows. Needs {flag}."
    assert one["fieldConfig"]["defaults"]["noValue"] == f"Nothing, or the exporter lacks {flag}"


def test_panel_with_something_else_shows_more() -> None:
    """A panel that is never empty for lack of detail does not say that it is."""
    one = panel("job:rankskew_ranks:sum", "rankskew_gpu_dram_active_ratio")
    say_what_it_needs(one)

    assert one["description"].endswith(" Shows more with --series.detail=gpu_activity.")
    assert one["fieldConfig"]["defaults"]["noValue"] == "Nothing"


def test_part_of_a_family_may_be_core() -> None:
    """The clock of the SMs is always shown, that of the memory is not."""
    assert detail_of('rankskew_gpu_clock_hertz{clock="sm",gpu="0"}') == set()
    assert detail_of('rankskew_gpu_clock_hertz{clock="memory"}') == {"gpu_clocks"}
    assert detail_of("rankskew_gpu_up == 0") == set()
    assert detail_of("job:rankskew_hung:seconds") == set()
