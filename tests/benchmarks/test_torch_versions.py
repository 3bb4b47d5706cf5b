"""Runs on other releases of torch: which are asked for, what is tried again, what is kept."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.torch_versions import TESTS, inside
from benchmarks.torch_versions.__main__ import merged
from benchmarks.torch_versions.environment import Release, python_of

Row = dict[str, Any]


OF_A_RELEASE: Row = {"torch": "2.8.0+cu128", "python": "3.12.1", "what": "DDP"}


def row(right: int = 5, **other: str) -> Row:
    return OF_A_RELEASE | {"right": right, "of": 5, "differs": ""} | other


@pytest.mark.parametrize(
    ("text", "torch", "python", "folder"),
    [("2.8", "2.8", "", "2.8"), ("2.15/3.14", "2.15", "3.14", "2.15-3.14")],
)
def test_release_has_a_torch_and_perhaps_a_python(
    text: str, torch: str, python: str, folder: str
) -> None:
    """Each pair has an environment of its own."""
    release = Release.of(text)

    assert (release.torch, release.python, release.folder) == (torch, python, folder)


def test_whole_version_is_no_release() -> None:
    """The last patch of a minor release is taken, whichever it is."""
    with pytest.raises(ValueError, match=r"'2\.8\.0' is not a torch such as 2\.8"):
        Release.of("2.8.0")


def test_absent_python_is_named() -> None:
    """Others are run all the same."""
    with pytest.raises(LookupError, match=r"no python9\.9 on PATH"):
        Release("2.8", "9.9").interpreter()


def test_old_torch_gets_the_frameworks_that_take_it() -> None:
    """Without that, the framework would not import."""
    assert "transformers<5" in list(Release("2.4").packages())
    assert "transformers<5" not in list(Release("2.15").packages())
    assert len(list(Release("2.4").packages())) == len(list(Release("2.15").packages()))


def test_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework that cannot be installed costs nothing but its own row."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> None:
        commands.append(command)
        (tmp_path / "2.8").mkdir(exist_ok=True)
        if any(part.startswith("deepspeed") for part in command):
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", run)
    first = python_of(Release("2.8"), tmp_path)
    made = len(commands)
    again = python_of(Release("2.8"), tmp_path)

    assert first == again == tmp_path / "2.8" / "bin" / "python"
    assert all("torch==2.8.*" in command for command in commands if "pip" in command)
    assert len(commands) == made + 1  # It compiles the probe as it is now.
    (tmp_path / "2.8" / "installed").write_text("what was wanted once")
    python_of(Release("2.8"), tmp_path)
    assert len(commands) == made + 1 + made


def test_rows_of_other_releases_are_kept() -> None:
    """A patch release takes the place of the one before; another Python is another row."""
    kept = [row(), row(python="3.13.0"), row(torch="2.15.0"), row(what="FSDP1")]
    new = row(torch="2.8.1", right=4)

    assert merged(kept, new) == [row(what="FSDP1"), new, row(python="3.13.0"), row(torch="2.15.0")]


def cases(*outcomes: int | Exception) -> tuple[Callable[[], Row], list[int]]:
    """Return a case with these outcomes, and what counts how often it ran."""
    ran: list[int] = []

    def case() -> Row:
        outcome = outcomes[len(ran)]
        ran.append(1)
        if isinstance(outcome, Exception):
            raise outcome
        return row(right=outcome)

    return case, ran


@pytest.mark.parametrize(
    ("outcomes", "right", "runs"),
    [((5,), 5, 1), ((3, 5), 5, 2), ((3, 4, 2), 4, 3), ((KeyError("x"), 5), 5, 2)],
)
def test_miss_is_tried_again(outcomes: tuple[int | Exception, ...], right: int, runs: int) -> None:
    """What the probe gets wrong is wrong each time; a busy machine is not."""
    case, ran = cases(*outcomes)

    assert inside.best_of_some("DDP", case, 5)["right"] == right
    assert len(ran) == runs


def test_job_that_does_not_run_tells_its_own_error() -> None:
    """Not the launcher's, which is the same for all of them; it runs without the probe."""
    output = (
        "[rank1]: ImportError: cannot import name 'fully_shard'\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\nFAILED"
    )
    case, _ = cases(*[AssertionError(output), KeyError("no snapshot")] * 3)

    said = inside.best_of_some("FSDP2", case, 5)

    assert said["differs"] == "does not run: ImportError: cannot import name 'fully_shard'"
    assert (said["right"], said["of"]) == (0, 5)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AssertionError("RuntimeError: no CUDA"), "RuntimeError: no CUDA"),
        (subprocess.TimeoutExpired([], 240), "not done after 240 s"),
    ],
)
def test_what_torch_itself_lacks_is_no_miss(error: Exception, said: str) -> None:
    """It does not run without the probe either, and is not tried again."""
    case, ran = cases(error, error)
    row = inside.best_of_some("FSDP2", case, 5)

    assert row["differs"] == f"does not run, nor without the probe: {said}"
    assert (row["right"], row["of"], len(ran)) == (0, 0, 2)


def test_failed_tests_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by its file and its name."""
    output = (
        "FAILED tests/rank_probe/torch_hooks/test_store.py::test_key[a/b-1] - KeyError\n"
        "ERROR tests/rank_probe/join/test_join.py\n"
        "2 failed, 326 passed, 60 deselected in 170.29s (0:02:50)\n"
    )
    done = subprocess.CompletedProcess([], 1, output)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)

    assert inside.tests() == {
        "what": TESTS,
        "right": 326,
        "of": 328,
        "differs": "test_store.py::test_key[a/b-1]; test_join.py",
    }
