"""Who is told that a rank is late: nobody, unless it costs enough."""

from typing import Any

import pytest

from exporter.ranks.late_enough import late_enough
from exporter.vocabulary.thresholds import Thresholds
from tests.exporter.snapshots import late


@pytest.mark.parametrize(
    ("ranks", "names"),
    [
        ([], []),
        ([{}], [2]),
        ([{"ratio": 0.03}], []),
        ([{"ratio": 0.031}], [2]),
        ([{"kind": "node", "ratio": 0.031}], [2]),
        ([{"kind": "pauses", "ratio": 0.01}], [2]),
        ([{"kind": "mild"}], []),
        ([{"kind": "unsynced"}], []),
        ([{"gpus": {"data": 0.63}}], []),
        ([{"gpus": {"data": 0.64}}], [2]),
        # Together they are worth a word; one that costs a tenth of the costliest is not.
        ([{"rank": 1, "gpus": {"data": 0.4}}, {"gpus": {"data": 0.3}}], [1, 2]),
        ([{"rank": 1}, {"gpus": {"data": 0.1}}], [1]),
        ([{"rank": 1, "kind": "mild", "gpus": {"data": 10.0}}, {}], []),
        # What ranks do for all is quiet until it costs a twentieth; the late are counted apart.
        ([{"kind": "duty", "gpus": {"eval": 3.19}}], []),
        ([{"kind": "duty", "gpus": {"eval": 3.2}}], [2]),
        ([{"rank": 0, "kind": "duty", "gpus": {"eval": 3.1}}, {"gpus": {"data": 0.9}}], [2]),
        ([{"rank": 0, "kind": "duty", "gpus": {"eval": 3.2}}, {"gpus": {"data": 0.6}}], [0]),
    ],
)
def test_rank_is_told_if_it_costs_enough(ranks: list[dict[str, Any]], names: list[int]) -> None:
    """The excess, the share of the costliest and the share of the job's GPUs all count."""
    found = late_enough([late(**each) for each in ranks], 64, Thresholds().value)

    assert sorted(found) == names
