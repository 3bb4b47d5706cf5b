"""A document for an assistant is small, and says what it lacks."""

from typing import Any, Final

import pytest

from rankskew.mcp.bounded import LARGEST_CHARACTERS, LONGEST_TEXT, ToolRefused, bounded, compact

EVERY: Final = 10**6
LESS: Final = "ask for one job"


def jobs(count: int, **fields: Any) -> dict[str, Any]:
    return {
        "source": "here",
        "jobs": [{"job_id": f"job-{each}", **fields} for each in range(count)],
    }


def test_short_document_stays_as_it_is() -> None:
    assert bounded(jobs(300), EVERY, LESS) == jobs(300)


def test_as_many_of_the_first_are_kept_as_fit() -> None:
    """What was left out is counted, and it says how to ask for less."""
    kept = bounded(jobs(1000, sentence="x" * 500), EVERY, LESS)

    assert kept["jobs"] == jobs(50, sentence="x" * 500)["jobs"]
    assert kept["cut"] == {"what": ["jobs: 50 of 1000"], "for_less": LESS}
    assert len(compact(kept)) <= LARGEST_CHARACTERS


def test_lists_within_are_cut_and_counted_together() -> None:
    kept = bounded(jobs(3, late=[1, 2, 3, 4]), 2, LESS)

    assert [job["late"] for job in kept["jobs"]] == [[1, 2], [1, 2]]
    assert kept["cut"]["what"] == ["jobs: 2 of 3", "jobs.late: 4 of 8"]


def test_long_text_is_cut() -> None:
    kept = bounded({"markdown": "é" * 20_000}, EVERY, LESS)

    assert kept["markdown"] == "é" * LONGEST_TEXT
    assert kept["cut"]["what"] == [f"markdown: {LONGEST_TEXT} of 20000"]


def test_what_is_too_long_however_it_is_cut_is_refused() -> None:
    with pytest.raises(ToolRefused, match="the answer is too long; ask for one job"):
        bounded({f"field {each}": "x" * 1000 for each in range(40)}, EVERY, LESS)
