"""A clock that only a test moves."""


class Clock:
    """Stands in for any clock that is a function."""

    def __init__(self, seconds: float = 5_000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds
