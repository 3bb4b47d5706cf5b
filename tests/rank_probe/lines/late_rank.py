"""A thread that trains while its stacks are sampled."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rank_probe.lines.stacks import Stacks
from tests.exporter.running import wait_until

Done = Callable[[], bool]
Work = Callable[[Done], object]


def nothing() -> None:
    """Do nothing."""


class LateRank:
    """A rank whose thread does *work* until it is done, in the next of *stages* at each look."""

    def __init__(self, work: Work, on_first: Callable[[], None], **environment: str) -> None:
        self.stages: Iterator[str] = itertools.repeat("data")
        self.done = threading.Event()
        self.thread = threading.Thread(target=work, args=(self.done.is_set,))
        self.thread.start()
        self.stacks = Stacks(
            environment,
            lambda: self.thread.ident or 0,
            lambda: next(self.stages),
            on_first=on_first,
        )

    def takes(self, samples: int = 40) -> None:
        """Wait for so many more samples."""
        before = self.stacks.samples
        wait_until(lambda: self.stacks.samples >= before + samples)


@contextmanager
def late_rank(
    work: Work,
    wake: Callable[[], object] = nothing,
    on_first: Callable[[], None] = nothing,
    **environment: str,
) -> Iterator[LateRank]:
    """Run a rank whose *work* ends after *wake*."""
    made = LateRank(work, on_first, **environment)
    try:
        yield made
    finally:
        made.stacks.watch(None)
        made.done.set()
        wake()
        made.thread.join()


def number_of_line(file: str, comment: str) -> int:
    """Return the number of the line of *file* that ends in *comment*."""
    lines = Path(file).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(comment))
