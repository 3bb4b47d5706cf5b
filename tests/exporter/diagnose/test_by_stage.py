"""What a stage alone says of the cause."""

import pytest

from exporter.diagnose.by_stage import chosen, stage_figures, suspects


@pytest.mark.parametrize(
    ("cost", "cause", "detail"),
    [
        ({"data": 1.0}, "input", ""),
        ({"checkpoint": 0.6, "forward": 0.4}, "extra_duties", "checkpoint"),
        ({"data": 0.4, "forward": 0.6}, "unknown", ""),
        ({"forward": 1.0}, "unknown", ""),
        ({}, "unknown", ""),
    ],
)
def test_stage_with_half_of_the_cost_decides(
    cost: dict[str, float], cause: str, detail: str
) -> None:
    """The GPU's stages point to nothing: code, clocks and work all delay them."""
    found = chosen(suspects(cost))

    assert (found.cause, found.detail) == (cause, detail)


def test_stages_that_take_longer_are_told() -> None:
    """The largest excess first; noise and waits are left out."""
    own = {"data": 0.5, "forward": 0.3, "backward": 0.41, "sync": 0.9}
    peers = [{"data": 0.1, "forward": 0.2, "backward": 0.4, "sync": 0.1}] * 3

    assert [each.name for each in stage_figures(own, peers)] == ["data, a step", "forward, a step"]
