"""Every panel says which detail of the exporters it needs; the others need none."""

import json
import re
from typing import Any

import pytest

from dashboards.detail import collectors, detail_of
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
        nothing = each["fieldConfig"]["defaults"].get("noValue")
        if nothing is not None and "Needs --series.detail" in each["description"]:
            assert nothing.endswith(f"the exporter lacks --series.detail={said[-1]}")


def test_first_rows_need_no_detail() -> None:
    """What a person sees first is there by default."""
    for path in JSON_FILES:
        top = [each for each in panels(path) if each["gridPos"]["y"] == 0]

        assert top
        assert "--series.detail" not in json.dumps(top)


def test_a_part_of_a_metric_may_be_core() -> None:
    """The clock of the SMs is always shown, that of the memory is not."""
    assert detail_of('rankskew_gpu_clock_hertz{clock="sm",gpu="0"}') == set()
    assert detail_of('rankskew_gpu_clock_hertz{clock="memory"}') == {"gpu_clocks"}
