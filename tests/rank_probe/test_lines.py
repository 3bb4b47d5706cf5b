"""The user's lines are found on a real stack, in a loader's workers too, and named without a home.

The training loop is found there as well, and known to fetch its next item or not.
"""

import functools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from textwrap import indent
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from rank_probe.lines.loader_code import workers_line
from rank_probe.lines.loop_frames import TrainingLoop, stack_of
from rank_probe.lines.user_code import CodeLine, UserCode, of_this_process
from rank_probe.probe import Probe
from rank_probe.report import push
from tests.exporter.running import wait_until
from tests.rank_probe.fakes import number_of_line

CODE = UserCode(["/usr/lib/python3.11"], ["/home/ann/train", "/home/ann", "/opt/team/"])


def test_only_the_users_own_files_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was installed, came with Python or has no file is not where a user looks first.

    Where torch lies outside the installed packages, its own file says where.
    """
    built = ModuleType("torch")
    built.__file__ = "/src/pytorch/torch/__init__.py"
    theirs = [json.__file__, threading.__file__, pytest.__file__, torch.__file__, push.__file__]
    theirs += ["/usr/lib/python3/dist-packages/yaml/loader.py", "<frozen runpy>", "<string>", ""]
    code = of_this_process()
    assert [file for file in theirs if code.has(file)] == []
    assert code.has(__file__)
    assert CODE.has("/usr/lib/python3.11-project/corpus.py")
    monkeypatch.setitem(sys.modules, "torch", built)

    assert not of_this_process().has("/src/pytorch/torch/nn/modules/module.py")


LONG = ".".join(f"Outer{number}" for number in range(30)) + ".read"
BEFORE = CodeLine("augment", "/home/ann/train/a.py", 41, before_model=True)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (CodeLine("f", "/home/ann/train/a.py", 41), "f (a.py:41)"),
        (CodeLine("f", "/opt/team/a/b/c/a.py", 41), "f (b/c/a.py:41)"),
        (CodeLine("f", "/home/bob/shared/a.py", 41), "f (a.py:41)"),
        (CodeLine("main.<locals>.C.read", "/home/ann/a.py", 41), "main.C.read (a.py:41)"),
        # The innermost says most.
        (CodeLine(LONG, "/home/ann/train/a.py", 41), f"…{LONG[-63:]} (a.py:41)"),
        # Neither does any name break a page, nor is it refused: at most 128 characters.
        (CodeLine("f\n\x1b[31m\u202e", "/home/ann/\udcff\x00.py", 1), "f??[31m? (??.py:1)"),
        (CodeLine("f" * 70, f"/{'g' * 70}.py", 10**9), f"…{'f' * 63} (…{'g' * 44}.py:1000000000)"),
        # It is in `forward`, but not in the forward pass.
        (BEFORE, "augment (a.py:41), before the model is called"),
    ],
)
def test_file_is_told_as_its_module_is_imported(line: CodeLine, told: str) -> None:
    """No directory above the user's project is told, so no name of a person either."""
    assert CODE.place(line) == told


def test_script_or_an_import_from_home_tells_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who imports from /home does not publish who lives there.

    runpy compiles a script under the relative name that it was called by.
    """
    monkeypatch.chdir("/usr")
    monkeypatch.setattr(sys, "path", ["/home", "/", "/home/ann/train", "/usr"])
    code = of_this_process({"HOME": "/home/ann"})

    assert code.place(CodeLine("f", "/home/ann/corpus.py", 1)) == "f (corpus.py:1)"
    assert code.place(CodeLine("f", "/home/ann/train/data/a.py", 1)) == "f (data/a.py:1)"
    assert code.place(CodeLine("f", "jobs/train.py", 3)) == "f (jobs/train.py:3)"


HERE = __file__


class Touched(Exception):
    """Something of the user's was called."""


class Corpus(Dataset[int]):
    def __getitem__(self, index: int) -> int:  # maps
        raise Touched

    def __len__(self) -> int:
        return 8


class Batched(Corpus):
    def __getitems__(self, indices: list[int]) -> list[int]:  # maps many
        raise Touched


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:  # iterates
        raise Touched


def collate(scale: int, batch: list[int]) -> list[int]:  # collates
    raise Touched


class Collator:
    def __call__(self, batch: list[int]) -> list[int]:  # calls
        raise Touched


def loader(dataset: Any, workers: int = 2, **options: Any) -> Any:
    return DataLoader(dataset, num_workers=workers, **options)


def rows() -> Any:
    return torch.utils.data.TensorDataset(torch.ones(4, 2))


@pytest.mark.parametrize(
    ("made", "function", "comment"),
    [
        (loader(Corpus()), "Corpus.__getitem__", "# maps"),
        (loader(Batched()), "Batched.__getitems__", "# maps many"),
        (loader(Stream()), "Stream.__iter__", "# iterates"),
        (loader(ConcatDataset([Subset(Corpus(), [1])])), "Corpus.__getitem__", "# maps"),
        (loader(rows(), collate_fn=functools.partial(collate, 2)), "collate", "# collates"),
        (loader(rows(), collate_fn=Collator()), "Collator.__call__", "# calls"),
        # Without workers the thread's own line says it.
        (loader(Corpus(), workers=0), "", ""),
        (loader(rows()), "", ""),
        (loader(3), "", ""),
        (object(), "", ""),
    ],
)
def test_users_method_is_found(
    made: Any, function: str, comment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset's own method is found below torch's wrappers, or else the collate function.

    The search must not read an attribute of the user's dataset: that would raise here.
    """
    monkeypatch.setattr(Corpus, "__getattribute__", collate)
    found = workers_line(made, lambda file: file == HERE)

    assert found == (CodeLine(function, HERE, number_of_line(HERE, comment)) if function else None)


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
        assert probe.stacks.snapshot_fields() == {}
        probe.stacks.watch("data")
        wait_until(lambda: probe.stacks.samples >= 0)
        line = number_of_line(HERE, "# ones")
        read = probe.stacks.snapshot_fields()["loader"]
        assert read.startswith("Ones.__getitem__ (")
        assert read.endswith(f"test_lines.py:{line})")
        probe.stacks.watch(None)
        assert probe.stacks.snapshot_fields() == {}
        del training, _
        assert probe.timeline.loader() is None
    finally:
        probe.stacks.stop()
        probe.detach()


Look = Callable[[], None]

# Enough for the interpreter to specialise what a loop runs: its instructions are others then.
ITEMS = 60


class Looks:
    """Looks at the caller's stack as the sampler does; *codes* those that called backward."""

    def __init__(self, knows_backward: bool = False) -> None:
        self.codes: tuple[CodeType, ...] = ()
        self._knows_backward = knows_backward
        self._loop = TrainingLoop(lambda: self.codes, lambda file: file == __file__)
        self.fetching: list[bool] = []

    def __call__(self) -> None:
        # Without this frame: on a real stack the innermost is the loop's own work.
        self.fetching.append(self._loop.is_fetching(stack_of(sys._getframe(1))))

    def backward(self) -> None:
        """Stand in for the loss's: the caller is seen calling backward."""
        if self._knows_backward:
            # A framework's frame may be between.
            self.codes = (json.dumps.__code__, sys._getframe(1).f_code)


class Items:
    """An iterator of the user's own that looks while it is asked for its next item."""

    def __init__(self, look: Look, items: int = ITEMS) -> None:
        self._look, self._left = look, items

    def __iter__(self) -> "Items":
        return self

    def __next__(self) -> int:
        if not self._left:
            raise StopIteration
        self._left -= 1
        self._look()
        return self._left


def generator(look: Look) -> Iterator[int]:
    for item in range(ITEMS):
        look()
        yield item


def work(look: Look) -> None:
    """Stand in for a forward that has loops of its own."""
    for _ in range(2):
        look()
    _ = [look() for _ in range(2)]  # type: ignore[func-returns-value]


def function(body: str) -> FunctionType:
    """Return a function of *looks* with this *body*, as if it were written in this file."""
    source = "def loop(looks):\n" + indent(body, "    ")
    names: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), dict(globals()), names)
    made: FunctionType = names["loop"]
    return made


FETCHES = [
    "for _ in Items(looks):\n    looks.backward()",
    "for _ in generator(looks):\n    looks.backward()",
    "for _, _ in zip(range(2 * ITEMS), Items(looks)):\n    looks.backward()",
    "it = Items(looks)\nfor _ in range(ITEMS):\n    str(abs(next(it)) + abs(1))\n"
    "    looks.backward()",
    "it = [Items(looks)]\nwhile it[0]._left:\n    _ = it[0].__next__()\n    looks.backward()",
]
WORKS = [
    "for _ in range(ITEMS):\n    work(looks)\n    looks.backward()",
    "for _ in range(ITEMS):\n    _ = [work(looks) for _ in range(2)]\n    looks.backward()",
    "it = iter([looks] * ITEMS)\nfor _ in range(ITEMS):\n    next(it)()\n    looks.backward()",
]


@pytest.mark.parametrize("knows_backward", [False, True])
@pytest.mark.parametrize("body", FETCHES + WORKS)
def test_fetching_the_next_item_is_seen(body: str, knows_backward: bool) -> None:
    """However a loop reads its own iterator, a look from within that iterator says so.

    Loops and comprehensions of the work, and what `next` is given or returns, are not.
    """
    looks = Looks(knows_backward)
    function(body)(looks)

    assert set(looks.fetching) == {body in FETCHES}


def step_of_its_own(looks: Looks) -> None:
    work(looks)
    looks.backward()


def an_epoch(looks: Looks) -> None:
    for _ in Items(looks, 3):
        step_of_its_own(looks)


def epochs(looks: Looks) -> None:
    for _ in range(2):
        an_epoch(looks)


def test_loop_around_a_function_of_one_step_is_learnt() -> None:
    """Epochs, loop and step are three functions: the middle one fetches, the inner one works.

    Until a stack shows who calls the step, the outermost loop is taken for the training's.
    """
    looks = Looks(knows_backward=True)
    epochs(looks)
    # Each item: one look while it is fetched, four while it is worked on.
    items = [looks.fetching[first : first + 5] for first in range(0, 30, 5)]

    assert items[:2] == [[False] * 5] * 2
    assert items[2:] == [[True] + [False] * 4] * 4
