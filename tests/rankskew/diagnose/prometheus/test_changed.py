"""When a job as a whole became slower."""

from rankskew.diagnose.prometheus.changed import split


def test_split_is_where_the_level_changes() -> None:
    """A single long step, such as one with a checkpoint, is no level."""
    values = [0.5] * 30 + [0.7] * 20
    values[10] = 9.0

    assert split(values) == 30


def test_too_few_points_have_no_level() -> None:
    """Five on either side are needed."""
    assert split([0.5] * 9) is None
    assert split([]) is None
