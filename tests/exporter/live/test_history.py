"""A rank's strip has a column for each ten seconds of the last ten minutes."""

from typing import Any

from exporter.live.history import RankHistory
from tests.exporter.snapshots import snapshot


class Rank:
    """A rank that reports every second."""

    def __init__(self) -> None:
        self.now, self.steps, self.data = 0.0, 0, 0.0
        self.history = RankHistory()

    def run(self, seconds: int, steps_each: int = 1, data: float = 0.5, **changes: Any) -> None:
        """Let *seconds* pass, with so many steps in each, and so much *data* time in a step."""
        for _ in range(seconds):
            self.steps += steps_each
            self.data += steps_each * data
            spent = {"data": self.data}
            self.history.add(self.now, snapshot(steps=self.steps, stage_seconds=spent, **changes))
            self.now += 1


def test_column_is_the_mean_step_of_ten_seconds() -> None:
    """Each column that has ended holds the seconds per step in each stage; the newest is last."""
    rank = Rank()
    rank.run(10)
    assert rank.history.columns() == []
    rank.run(10, data=0.25)
    rank.run(1)

    assert rank.history.columns() == [{"data": 0.475}, {"data": 0.275}]


def test_ten_minutes_are_kept() -> None:
    """Older columns go."""
    rank = Rank()
    rank.run(900)

    assert len(rank.history.columns()) == 60


def test_standstill_is_empty_columns() -> None:
    """Ten seconds without a step have nothing to show."""
    rank = Rank()
    rank.run(11)
    rank.run(20, steps_each=0)

    assert rank.history.columns() == [{"data": 0.5}, None, None]


def test_long_step_fills_the_columns_that_it_took() -> None:
    """A step of half a minute is drawn where it happened, not only where it ended."""
    rank = Rank()
    rank.run(11)
    rank.run(29, steps_each=0)
    rank.run(1, data=30.0)

    assert rank.history.columns()[1:] == [{"data": 30.0}] * 3


def test_new_process_is_not_subtracted_from_the_old() -> None:
    """After a restart the counters begin anew, and so does the next column."""
    rank = Rank()
    rank.run(11)
    rank.steps, rank.data = 0, 0.0
    rank.run(10, data=0.1, pid=99)

    assert rank.history.columns() == [{"data": 0.5}, {"data": 0.1}]


def test_reports_that_stop_leave_a_gap() -> None:
    """If no sample was taken for a while, the columns of that time are empty."""
    rank = Rank()
    rank.run(11)
    rank.now += 30
    rank.run(1)

    assert rank.history.columns() == [{"data": 0.5}, {"data": 0.5}, None, None]
