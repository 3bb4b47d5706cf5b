"""Samples become shares of their stage, of the latest time, in a steady order."""

from rank_probe.lines.sample_window import LEAST_SAMPLES, LineShare, SampleWindow, StackSample
from rank_probe.lines.user_code import CodeLine

READ, PARSE, LOSS = (CodeLine(name, "/a.py", n) for n, name in enumerate(("read", "parse", "loss")))


def window(*samples: tuple[str, CodeLine | None, int], most: int = 6_000) -> SampleWindow:
    """Return a window after so many samples of each stage and line."""
    made = SampleWindow(most)
    for stage, line, count in samples:
        add(made, stage, line, count)
    return made


def add(to: SampleWindow, stage: str, line: CodeLine | None, count: int) -> None:
    for _ in range(count):
        to.add(StackSample(stage, line, is_fetching=line is READ))


def test_shares_are_of_the_lines_own_stage() -> None:
    """The late stage comes first, even if another has more samples; then the most frequent.

    Samples without a line of the user's make the others smaller.
    """
    seen = window(("forward", LOSS, 90), ("data", READ, 30), ("data", PARSE, 10))
    assert seen.lines("data", 5) == [
        LineShare("data", READ, 0.75),
        LineShare("data", PARSE, 0.25),
        LineShare("forward", LOSS, 1.0),
    ]
    assert seen.lines("data", 1) == [LineShare("data", READ, 0.75)]
    assert seen.lines("forward", 5)[0].line == LOSS
    assert seen.iterating_share("data") == 0.75
    add(seen, "data", None, 20)
    assert seen.lines("data", 1) == [LineShare("data", READ, 0.5)]


def test_few_samples_say_nothing() -> None:
    """The first moments of a lateness name no line, and no page a line with 0 % of a stage."""
    few = window(("data", READ, LEAST_SAMPLES - 1))
    assert few.lines("data", 5) == []
    assert few.iterating_share("data") is None
    assert few.iterating_share("forward") is None
    add(few, "data", READ, 280)
    add(few, "data", PARSE, 1)
    assert [each.line for each in few.lines("data", 5)] == [READ]


def test_fetches_get_the_name_of_their_stage() -> None:
    """What was sampled before it was known that batches are read in `other` keeps its line."""
    seen = window(("other", READ, 60), ("other", LOSS, 20), ("data", READ, 20))
    seen.rename_fetches("other", "data")

    assert seen.lines("data", 5) == [LineShare("data", READ, 1.0), LineShare("other", LOSS, 1.0)]
    assert (seen.iterating_share("data"), seen.iterating_share("other")) == (1.0, 0.0)


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
