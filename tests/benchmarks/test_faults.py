"""What ranks and Prometheus counted through the faults is compared rightly."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.faults import __main__ as faults
from benchmarks.faults import killing
from benchmarks.faults.counters import Stored, falls, not_as_counted, too_high, unexplained
from benchmarks.faults.kills import Killed
from benchmarks.faults.ranks.records import RECORD, Life, Step, read
from benchmarks.report import broken, row, show
from devstack.webhook import ReceivedAlert

RANK_STEPS = {"__name__": "rankskew_steps_total", "job_id": "faults", "rank": "1"}
RESTARTED = Stored(RANK_STEPS, ((0.0, 5.0), (1.0, 50.0), (2.0, 50.0), (3.0, 4.0), (4.0, 50.0)))


def life(rank: int, *ends: float) -> Life:
    """Return a process of *rank* whose steps ended then."""
    return Life(rank, 1, tuple(Step(end, 0.02, 0.0, 0.0, 0.0) for end in ends))


def killed(part: str, at: float) -> Killed:
    """Return a kill of *part*."""
    return Killed(part, at, 1.0)


def test_fall_is_explained_by_a_kill_of_what_counts() -> None:
    """The successor's first sample may come seconds after the kill."""
    assert list(falls(RESTARTED)) == [(2.0, 3.0)]
    assert unexplained(RESTARTED, [killed("rank 1", 1.2)]) == []


@pytest.mark.parametrize("part", ["rank 2", "exporter", "NVML child", "Prometheus"])
def test_fall_is_not_explained_by_another_death(part: str) -> None:
    """A rank's counter lives in its process, and survives everybody else's."""
    assert unexplained(RESTARTED, [killed(part, 1.2)]) == [(2.0, 3.0)]


def test_kill_explains_one_fall_only() -> None:
    """A second fall needs a second death; one before the death is none of it."""
    series = Stored(RANK_STEPS, ((0.0, 9.0), (1.0, 1.0), (2.0, 9.0), (3.0, 1.0)))

    assert unexplained(series, [killed("rank 1", 0.5)]) == [(2.0, 3.0)]
    assert unexplained(series, [killed("rank 1", 2.5)]) == [(0.0, 1.0)]
    assert unexplained(series, [killed("rank 1", 0.5), killed("rank 1", 2.5)]) == []


def test_what_the_exporter_counts_may_begin_anew_with_it() -> None:
    """Its own counters, and what it counts of a rank's process."""
    labels = {"__name__": "rankskew_rank_cpu_seconds_total", "rank": "1"}
    series = Stored(labels, ((0.0, 9.0), (1.0, 1.0)))

    assert unexplained(series, [killed("exporter", 0.5)]) == []
    assert unexplained(series, [killed("rank 2", 0.5)]) == [(0.0, 1.0)]


def test_sample_above_what_was_counted_is_a_step_counted_twice() -> None:
    """Each sample is compared with what the process had finished by its time."""
    lives = [life(1, 1.0, 2.0, 3.0), life(2, 1.0)]

    quick = {1.5: 0.0, 2.5: 0.0, 9.0: 0.0}
    assert too_high(Stored(RANK_STEPS, ((1.5, 1.0), (2.5, 2.0), (9.0, 3.0))), lives, quick) == []
    high = Stored(RANK_STEPS, ((1.5, 2.0), (2.5, 2.0), (9.0, 4.0)))
    assert too_high(high, lives, quick | {1.5: 0.6}) == [(9.0, 4.0, 3)]
    assert too_high(high, lives, quick) == [
        (1.5, 2.0, 1),
        (9.0, 4.0, 3),
    ]


def test_last_sample_is_what_the_last_process_counted() -> None:
    """One step more or less, or a rank that is missing, is a difference."""
    series = Stored(RANK_STEPS, ((1.0, 9.0), (2.0, 2.0)))

    assert not_as_counted([series], [life(1, *range(9)), life(1, 10.0, 11.0)]) == 0
    assert not_as_counted([series], [life(1, 10.0, 11.0, 12.0)]) == 1
    assert not_as_counted([series], [life(1, 10.0, 11.0), life(2, 1.0)]) == 1


def test_half_a_record_is_no_step(tmp_path: Path) -> None:
    """A kill may come while one is written; lives are in their order."""
    record = RECORD.pack(2.0, 0.02, 0.0, 0.0, 0.0)
    (tmp_path / "0-20.steps").write_bytes(record + record[:5])
    (tmp_path / "0-30.steps").write_bytes(RECORD.pack(1.0, 0.02, 0.0, 0.0, 0.0))
    (tmp_path / "0-40.steps").write_bytes(b"")

    assert [(life.pid, len(life.steps)) for life in read(tmp_path)] == [(30, 1), (20, 1)]


def test_only_what_is_above_its_most_is_broken() -> None:
    """A figure at its limit holds, and one without a limit promises nothing."""
    assert broken([row("at", 1.0, 1.0), row("above", 1.1, 1.0), row("free", 9.0)]) == [
        row("above", 1.1, 1.0)
    ]


@pytest.mark.parametrize("pages", [0, 1])
def test_any_page_fails_the_run_and_is_printed(
    pages: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody may be called because parts of the stack died; the words say what to look for."""
    page = ReceivedAlert(
        "firing", {"alertname": "RankskewStraggler"}, {"summary": "rank 3 is slow"}
    )
    lives = [life(1, *map(float, range(9)))]
    found = killing.Found(
        [], 9.0, 9.0, [Stored(RANK_STEPS, ((9.0, 9.0),))], {9.0: 0.0}, lives, [], []
    )
    monkeypatch.setattr(killing, "_played", lambda *_: replace(found, pages=[page] * pages))
    monkeypatch.setattr(faults, "write", lambda _name, rows, tables: show(rows))
    monkeypatch.setattr("sys.argv", ["faults", "--only", "kills"])

    assert faults.main() == pages
    out, err = capsys.readouterr()
    assert ("rank 3 is slow" in out) == bool(pages)
    assert ("broken: pages of the shipped alerts is 1" in err) == bool(pages)


@pytest.mark.parametrize(
    ("ours", "empty", "expected"), [(0, 0, 0), (6, 0, 0), (7, 0, 1), (20, 10, 0), (30, 10, 6)]
)
def test_pauses_are_ours_when_an_empty_loop_has_far_fewer(
    ours: int, empty: int, expected: int
) -> None:
    """Six heads in a row are chance, at one in a hundred; seven are not."""
    assert killing.unexplained(ours, empty) == expected
