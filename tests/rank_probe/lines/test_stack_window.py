"""Samples become shares of their stage, of the latest time, in a steady order."""

import pytest

from rank_probe.lines.stack_window import LEAST_SAMPLES, LineShare, StackSample, StackWindow
from rank_probe.lines.user_code import CodeLine

READ, PARSE, LOSS = (CodeLine(name, "/a.py", n) for n, name in enumerate(("read", "parse", "loss")))


def window(*samples: tuple[str, CodeLine | None, int], most: int = 6_000) -> StackWindow:
    """Return a window after so many samples of each stage and line."""
    made = StackWindow(most)
    for stage, line, count in samples:
        add(made, stage, line, count)
    return made


def add(to: StackWindow, stage: str, line: CodeLine | None, count: int) -> None:
    for _ in range(count):
        to.add(StackSample(stage, line, is_fetching=line is READ))


def test_shares_are_of_the_lines_own_stage() -> None:
    """The late stage comes first, even if another has more samples; then the most frequent."""
    seen = window(("forward", LOSS, 90), ("data", READ, 30), ("data", PARSE, 10))

    assert seen.lines("data", 5) == [
        LineShare("data", READ, 0.75),
        LineShare("data", PARSE, 0.25),
        LineShare("forward", LOSS, 1.0),
    ]
    assert seen.lines("data", 1) == [LineShare("data", READ, 0.75)]


def test_time_outside_the_users_code_counts_in_the_share() -> None:
    """Samples without a line make the others smaller."""
    assert window(("data", READ, 30), ("data", None, 30)).lines("data", 5) == [
        LineShare("data", READ, 0.5)
    ]


def test_few_samples_say_nothing() -> None:
    """The first moments of a lateness name no line."""
    assert window(("data", READ, LEAST_SAMPLES - 1)).lines("data", 5) == []
    assert window(("data", READ, LEAST_SAMPLES - 1)).iterating_share("data") is None
    assert window(("data", READ, LEAST_SAMPLES)).lines("data", 5) == [LineShare("data", READ, 1.0)]


def test_only_the_latest_samples_count() -> None:
    """What a rank did long ago is forgotten, and takes no memory."""
    seen = window(("data", READ, 500), ("data", PARSE, 100), most=100)

    assert seen.lines("data", 5) == [LineShare("data", PARSE, 1.0)]
    assert seen.iterating_share("data") == 0.0


def test_first_line_does_not_flap() -> None:
    """Two lines of about equal cost do not take turns: each first line is a new series."""
    seen = window(("data", READ, 50), ("data", PARSE, 45))
    assert [each.line for each in seen.lines("data", 5)] == [READ, PARSE]
    add(seen, "data", PARSE, 10)
    assert [each.line for each in seen.lines("data", 5)] == [READ, PARSE]
    add(seen, "data", PARSE, 10)
    assert [each.line for each in seen.lines("data", 5)] == [PARSE, READ]


def test_other_stage_takes_the_first_place_at_once() -> None:
    """If the judge names another stage, its lines come first."""
    seen = window(("data", READ, 50), ("forward", LOSS, 30))

    assert seen.lines("data", 5)[0].line == READ
    assert seen.lines("forward", 5)[0].line == LOSS


@pytest.mark.parametrize(("stage", "share"), [("data", 0.75), ("forward", None)])
def test_share_of_iterating_is_by_stage(stage: str, share: float | None) -> None:
    """How often the loop was fetching, of the samples in that stage."""
    assert window(("data", READ, 30), ("data", PARSE, 10)).iterating_share(stage) == share


def test_line_that_was_hardly_ever_seen_is_left_out() -> None:
    """No page says that a line has 0 % of a stage."""
    seen = window(("data", READ, 299), ("data", PARSE, 1))

    assert [each.line for each in seen.lines("data", 5)] == [READ]
