"""A timeline whose boundaries a test can look at."""

from rank_probe.measure.timeline import Timeline


class _Recorder:
    def __init__(self) -> None:
        self.marks: list[int] = []

    def boundary(self, mark: int) -> None:
        self.marks.append(mark)


def recorded(*, automatic: bool) -> Timeline:
    """Return a timeline for `marks`."""
    timeline = Timeline(automatic=automatic)
    timeline.also_tell(_Recorder())
    return timeline


def marks(timeline: Timeline) -> list[int]:
    """Return the boundaries of a recorded timeline so far: stages with their marks."""
    recorder = timeline._device
    assert isinstance(recorder, _Recorder)
    return recorder.marks
