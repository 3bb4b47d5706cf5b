"""The user's code is told from others', in a loader's workers too, and named without a home."""

import functools
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from rank_probe.lines.loader_code import workers_line
from rank_probe.lines.user_code import CodeLine, UserCode, of_this_process
from rank_probe.probe import Probe
from rank_probe.report import push
from tests.exporter.running import wait_until
from tests.rank_probe.lines.late_rank import number_of_line

CODE = UserCode(["/usr/lib/python3.11"], ["/home/ann/train", "/home/ann", "/opt/team/"])


@pytest.mark.parametrize(
    ("file", "is_users"),
    [
        ("/home/ann/train/corpus.py", True),
        ("/usr/lib/python3.11-project/corpus.py", True),
        ("/usr/lib/python3.11/threading.py", False),
        ("/opt/venv/lib/python3.12/site-packages/numpy/core.py", False),
        ("/usr/lib/python3/dist-packages/yaml/loader.py", False),
        ("<frozen runpy>", False),
        ("<string>", False),
        ("", False),
    ],
)
def test_only_the_users_own_files_count(file: str, is_users: bool) -> None:
    """What was installed, came with Python or has no file is not where a user looks first."""
    assert CODE.has(file) is is_users
    assert CODE.has(file) is is_users  # as remembered


def test_this_process_knows_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's library, what is installed, torch and the probe are not the user's; this file is.

    Where torch lies outside the installed packages, its own file says where.
    """
    import torch

    stdlib = os.path.join(sysconfig.get_paths()["stdlib"], "logging", "__init__.py")
    code = of_this_process()
    for file in (stdlib, threading.__file__, pytest.__file__, torch.__file__, push.__file__):
        assert file is not None
        assert not code.has(file), file
    assert code.has(__file__)
    built = type(sys)("torch")
    built.__file__ = "/src/pytorch/torch/__init__.py"
    monkeypatch.setitem(sys.modules, "torch", built)

    assert not of_this_process().has("/src/pytorch/torch/nn/modules/module.py")


LONG = ".".join(f"Outer{number}" for number in range(30)) + ".read"


@pytest.mark.parametrize(
    ("function", "file", "told"),
    [
        ("f", "/home/ann/train/corpus.py", "f (corpus.py:41)"),
        ("f", "/home/ann/train/data/corpus.py", "f (data/corpus.py:41)"),
        ("f", "/home/ann/lib/corpus.py", "f (lib/corpus.py:41)"),
        ("f", "/opt/team/a/b/c/corpus.py", "f (b/c/corpus.py:41)"),
        ("f", "/home/bob/shared/corpus.py", "f (corpus.py:41)"),
        ("main.<locals>.Corpus.read", "/home/ann/train/a.py", "main.Corpus.read (a.py:41)"),
        (LONG, "/home/ann/train/a.py", f"…{LONG[-63:]} (a.py:41)"),  # The innermost says most.
    ],
)
def test_file_is_told_as_its_module_is_imported(function: str, file: str, told: str) -> None:
    """No directory above the user's project is told, so no name of a person either."""
    assert CODE.place(CodeLine(function, file, 41)) == told


def test_what_ran_before_the_model_is_told_so() -> None:
    """It is in `forward`, but not in the forward pass."""
    line = CodeLine("augment", "/home/ann/train/corpus.py", 41, before_model=True)

    assert CODE.place(line) == "augment (corpus.py:41), before the model is called"


def test_import_root_above_the_home_directories_tells_no_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody who imports from /home does not publish who lives there."""
    monkeypatch.setattr(sys, "path", ["/home", "/"])
    code = of_this_process({"HOME": "/home/ann"})

    assert code.place(CodeLine("f", "/home/ann/corpus.py", 1)) == "f (corpus.py:1)"


def test_script_with_a_relative_name_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """runpy compiles a script under the name that it was called by."""
    monkeypatch.chdir(tmp_path)
    code = UserCode([], [str(tmp_path)])

    assert code.place(CodeLine("<module>", "jobs/train.py", 3)) == "<module> (jobs/train.py:3)"


@pytest.mark.parametrize(
    "line",
    [
        CodeLine("f" * 1_000, "/home/ann/train/" + "g" * 1_000 + ".py", 10**9),
        CodeLine("f" * 1_000, "/" + "g" * 1_000 + ".py", 10**5 - 1, before_model=True),
        CodeLine("f\n\x1b[31m\u202e", "/home/ann/train/\udcff\x00.py", 1),
        CodeLine('f"}\\', "/home/ann/train/g.py", 1),
    ],
)
def test_any_name_becomes_a_short_printable_label(line: CodeLine) -> None:
    """What a program calls its functions and files cannot break a page or be refused."""
    place = CODE.place(line)

    assert 0 < len(place) <= 128
    assert place.isprintable()


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


def collate(scale: int, batch: list[int]) -> list[int]:  # collates
    raise Touched


class Collator:
    def __call__(self, batch: list[int]) -> list[int]:  # calls
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
    (loader(Subset(Corpus(), [1])), "Corpus.__getitem__", "# maps"),
    (loader(ConcatDataset([Subset(Corpus(), [1])])), "Corpus.__getitem__", "# maps"),
    (loader(rows(), collate_fn=functools.partial(collate, 2)), "collate", "# collates"),
    (loader(rows(), collate_fn=Collator()), "Collator.__call__", "# calls"),
]


@pytest.mark.usefixtures("_watched")
@pytest.mark.parametrize(("made", "function", "comment"), LOADERS)
def test_users_method_is_found(made: Any, function: str, comment: str) -> None:
    """The dataset's own, below torch's wrappers; else what puts a batch together."""
    found = workers_line(made, lambda file: file == HERE)

    assert found is not None
    assert found == CodeLine(function, HERE, number_of_line(HERE, comment))


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
        assert probe.stacks.loader().endswith(f"test_user_code.py:{line})")
        probe.stacks.watch(None)
        assert probe.stacks.loader() == ""
        del training, _
        assert probe.timeline.loader() is None
    finally:
        probe.stacks.stop()
        probe.detach()
