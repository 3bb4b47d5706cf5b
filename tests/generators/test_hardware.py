import re
from pathlib import Path

from docs import metrics_table
from exporter.scrape.levels import exposed_name

PAGE = (Path(__file__).parents[2] / "docs" / "hardware.md").read_text()
PREFIXES = ("gpu_", "node_", "rank_gpus", "rank_host")


def test_every_series_of_gpus_and_hosts_is_explained_and_no_other() -> None:
    """The page names all that these collectors expose, and nothing that is gone."""
    exposed = {
        exposed_name(family)
        for name, _, families in metrics_table.families_by_collector()
        if name.startswith(PREFIXES)
        for family in families
    }
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `rankskew_")]

    assert set(re.findall(r"`(rankskew_\w+)`", "".join(rows))) == exposed
    assert len(exposed) > 60
