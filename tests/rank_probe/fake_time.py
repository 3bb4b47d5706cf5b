"""A clock for tests."""


class FakeTime:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.nanoseconds = 1_000

    def __call__(self) -> int:
        return self.nanoseconds

    def pass_(self, nanoseconds: int) -> None:
        self.nanoseconds += nanoseconds
