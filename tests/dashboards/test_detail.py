"""Every panel says which detail of the exporters it needs; the others need none."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from dashboards.detail import collectors, say_what_it_needs
from exporter.collectors.catalog import COLLECTORS
from exporter.scrape.levels import LEVELS, PARTS
from tests.dashboards.dashboard_files import JSON_FILES, metric_names, panels

FLAG = re.compile(r"--series\.detail=([a-z_,0-9]+)")
CORE = {*LEVELS, *PARTS}


@pytest.mark.parametrize("path", JSON_FILES, ids=lambda path: path.stem)
def test_panel_says_which_detail_it_needs(path: Any) -> None:
    """Whoever sees an empty panel reads which flag fills it, with the names of collectors."""
    names = {entry.name for entry in COLLECTORS}
    for each in panels(path):
        read = {name for target in each["targets"] for name in metric_names(target["expr"])}
        detail = {name for name in read - CORE if ":" not in name}  # Rules record the others.
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


@pytest.mark.parametrize(
    ("exprs", "said", "nothing"),
    [
        (
            ("rankskew_gpu_dram_active_ratio{x}", "rate(rankskew_node_cpu_seconds_total[1m])"),
            "Needs --series.detail=gpu_activity,node_cpu.",
            "Nothing, or the exporter lacks --series.detail=gpu_activity,node_cpu",
        ),
        (
            ("job:rankskew_ranks:sum", "rankskew_gpu_dram_active_ratio"),
            "Shows more with --series.detail=gpu_activity.",
            "Nothing",  # It is never empty for lack of detail.
        ),
        # The clock of the SMs is always shown, that of the memory is not.
        (('rankskew_gpu_clock_hertz{clock="sm",gpu="0"}', "rankskew_gpu_up == 0"), None, "Nothing"),
        (
            ('rankskew_gpu_clock_hertz{clock="memory"}',),
            "Needs --series.detail=gpu_clocks.",
            "Nothing, or the exporter lacks --series.detail=gpu_clocks",
        ),
    ],
)
def test_panel_of_detail_says_that_it_needs_it(
    exprs: Sequence[str], said: str | None, nothing: str
) -> None:
    """In its description, and where nothing is shown."""
    panel: dict[str, Any] = {
        "description": "What it shows.",
        "targets": [{"expr": expr} for expr in exprs],
        "fieldConfig": {"defaults": {"noValue": "Nothing"}},
    }
    say_what_it_needs(panel)

    assert panel["description"] == "What it shows." + (f" {said}" if said else "")
    assert panel["fieldConfig"]["defaults"]["noValue"] == nothing
