"""Tests of the interpreter: which batches are used by a backward, and which are not."""

import pytest

from rank_probe.measure import events as e
from rank_probe.measure.boundaries import OTHER_BATCH, UNUSED, USED
from rank_probe.measure.loop_state import MOST_BATCHES
from tests.rank_probe.measure.noted_loop import BACKWARDS, END_OF_LOADER, FETCH, Does, Job

BATCHES: dict[str, tuple[Does, list[int]]] = {
    "every batch of a loop that reads ahead is used once": (
        (*FETCH, *FETCH, *BACKWARDS, *FETCH, *BACKWARDS),
        [USED, USED],
    ),
    # With gradients on, only the end of its loader shows that nobody trained with them.
    "batches of an evaluation are not used": (
        (*FETCH, *BACKWARDS, *FETCH * 3, *END_OF_LOADER, *FETCH, *BACKWARDS),
        [USED, UNUSED, USED],
    ),
    # It asks for the batch after them, and finds the loader's end, before it trains with them.
    "the last batches of a loop that reads ahead are used": (
        (*FETCH, *FETCH, *END_OF_LOADER, *BACKWARDS, *BACKWARDS, *FETCH),
        [USED],
    ),
    # A data set that reads another loader: what the loop gets is the batch.
    "a loader within a loader brings none": (
        (e.FETCH, *FETCH, e.FETCHED, *BACKWARDS),
        [OTHER_BATCH, USED],
    ),
    "an evaluation between a batch and its backward takes nothing from it": (
        (*FETCH, *(e.FETCH_UNGRADED, e.FETCHED, e.FETCH_UNGRADED, e.EXHAUSTED), *BACKWARDS),
        [OTHER_BATCH, USED],
    ),
}


@pytest.mark.parametrize("case", BATCHES)
def test_batches_are_told_to_be_used_or_not(case: str) -> None:
    does, expected = BATCHES[case]

    assert Job().run(*does).marked(USED | UNUSED | OTHER_BATCH) == expected


def test_loop_that_never_trains_keeps_few_batches() -> None:
    """An inference with gradients on does not collect them."""
    job = Job().run(*FETCH * (5 * MOST_BATCHES))

    assert job.state.batches <= MOST_BATCHES
    assert UNUSED in job.marked(UNUSED)
