"""A test that the machine has disturbed is tried again, and one that is wrong fails."""

import pytest

from tests.exporter.tried_again import ATTEMPTS, tried_again


@pytest.mark.parametrize("wrong", range(ATTEMPTS + 1))
def test_test_may_fail_but_not_each_time(wrong: int) -> None:
    """No attempt follows the one that passes, nor the last."""
    attempts: list[str] = []

    @tried_again
    def test(name: str) -> None:
        attempts.append(name)
        assert len(attempts) > wrong

    if wrong < ATTEMPTS:
        test("with its fixtures")
    else:
        with pytest.raises(AssertionError):
            test("with its fixtures")

    assert attempts == ["with its fixtures"] * min(wrong + 1, ATTEMPTS)
