"""What a loader's workers run is named, and nothing of the user's runs for it."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from rank_probe.lines.loader_code import workers_line
from rank_probe.probe import Probe
from tests.exporter.running import wait_until
from tests.rank_probe.lines.late_rank import number_of_line

HERE = __file__


class Touched(Exception):
    """Something of the user's was called."""


class Corpus(Dataset[int]):
    """Maps; whoever reads an attribute of it is found out."""

    def __getitem__(self, index: int) -> int:  # maps
        raise Touched

    def __len__(self) -> int:
        return 8

    def __getattribute__(self, name: str) -> Any:
        if is_watched:
            raise Touched
        return super().__getattribute__(name)


class Batched(Corpus):
    def __getitems__(self, indices: list[int]) -> list[int]:  # maps many
        raise Touched


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:  # iterates
        raise Touched


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class Decorated(Corpus):
    @decorated
    def __getitem__(self, index: int) -> int:  # decorated
        raise Touched


def collate(scale: int, batch: list[int]) -> list[int]:  # collates
    raise Touched


class Collator:
    def __call__(self, batch: list[int]) -> list[int]:  # calls
        raise Touched

    def collates(self, batch: list[int]) -> list[int]:  # method
        raise Touched


is_watched = False


@pytest.fixture
def _watched() -> Iterator[None]:
    global is_watched
    is_watched = True
    yield
    is_watched = False


def loader(dataset: Any, workers: int = 2, **options: Any) -> Any:
    return DataLoader(dataset, num_workers=workers, **options)


def rows() -> Any:
    return torch.utils.data.TensorDataset(torch.ones(4, 2))


LOADERS = [
    (loader(Corpus()), "Corpus.__getitem__", "# maps"),
    (loader(Batched()), "Batched.__getitems__", "# maps many"),
    (loader(Stream()), "Stream.__iter__", "# iterates"),
    (loader(Decorated()), "Decorated.__getitem__", "# decorated"),
    (loader(Subset(Corpus(), [1])), "Corpus.__getitem__", "# maps"),
    (loader(ConcatDataset([Subset(Corpus(), [1])])), "Corpus.__getitem__", "# maps"),
    (loader(rows(), collate_fn=functools.partial(collate, 2)), "collate", "# collates"),
    (loader(rows(), collate_fn=Collator()), "Collator.__call__", "# calls"),
    (loader(rows(), collate_fn=Collator().collates), "Collator.collates", "# method"),
]


@pytest.mark.usefixtures("_watched")
@pytest.mark.parametrize(("made", "function", "comment"), LOADERS)
def test_users_method_is_found(made: Any, function: str, comment: str) -> None:
    """The dataset's own, below torch's wrappers; else what puts a batch together."""
    found = workers_line(made, lambda file: file == HERE)

    assert found is not None
    first = number_of_line(HERE, comment)
    assert (found.function, found.file) == (function, HERE)
    assert found.number in (first, first - 1)  # A decorator's line is the first.


@pytest.mark.parametrize(
    "made",
    [loader(Corpus(), workers=0), loader(rows()), loader(3), None, object(), {"num_workers": 2}],
)
def test_nothing_is_named_where_nothing_of_the_users_runs(made: Any) -> None:
    """Without workers the thread's own line says it."""
    assert workers_line(made, lambda file: file == HERE) is None


class Ones(Dataset[torch.Tensor]):
    def __getitem__(self, index: int) -> torch.Tensor:  # ones
        return torch.ones(2)

    def __len__(self) -> int:
        return 4


def test_probe_knows_the_loader_of_the_loop_while_it_is_late() -> None:
    """That of training, not of an evaluation; a healthy rank's snapshot does not look."""
    probe = Probe(automatic=True, environment={"RANKSKEW_JOB_ID": "x", "RANK": "0"})
    probe.attach()
    try:
        training = loader(Ones(), workers=1)
        for _ in training:
            pass
        with torch.no_grad():
            for _ in loader(rows(), workers=0):
                pass
        assert probe.timeline.loader() is training
        assert probe.stacks.loader() == ""
        probe.stacks.watch("data")
        wait_until(lambda: probe.stacks.samples >= 0)
        line = number_of_line(HERE, "# ones")
        assert probe.stacks.loader().startswith("Ones.__getitem__ (")
        assert probe.stacks.loader().endswith(f"test_loader_code.py:{line})")
        probe.stacks.watch(None)
        assert probe.stacks.loader() == ""
        del training, _
        assert probe.timeline.loader() is None
    finally:
        probe.stacks.stop()
        probe.detach()
