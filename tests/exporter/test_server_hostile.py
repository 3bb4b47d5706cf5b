"""A real exporter process outlives hostile snapshots and requests; `make fuzz` tries many more."""

from pathlib import Path

from benchmarks.hostile.attack import Plan, run


def test_hostile_input_breaks_nothing(tmp_path: Path) -> None:
    """No 5xx, no traceback, no growth, and proper pushes and scrapes go on in between."""
    rows = run(tmp_path, Plan(bodies=2_000, requests=300, every=500))

    measured = {row["what"]: row["measured"] for row in rows}
    assert measured["of these taken"] > 500
    assert measured["of these refused"] > 500
    assert measured["of their answers 2xx"] > 20
    assert measured["of their answers 4xx"] > 100
    assert measured["turned away for want of room (503)"] == 0
