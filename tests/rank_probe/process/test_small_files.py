"""Small files of the kernel and of others are read, whatever somebody has put in their place."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rank_probe.process.cpus import MOST_CPUS, cpu_list
from rank_probe.process.small_files import beginning, content, names_in, number_in, text_of


def test_beginning_is_all_that_is_read(tmp_path: Path) -> None:
    """However long the file is; files of /proc come in several pieces."""
    file = tmp_path / "sparse"
    file.write_bytes(b"begin")
    os.truncate(file, 1 << 40)

    assert content(file, 4) == b"begi"
    assert beginning(file, 100_000) == b"begin".ljust(100_000, b"\0")
    assert (text_of("/proc/self/maps") or "").splitlines()[-1]


TRAPS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda _: None, "No such file"),
    "pipe": (os.mkfifo, "not a regular file"),
    "device": (lambda file: file.symlink_to("/dev/zero"), "it is a link"),
    "link": (lambda file: file.symlink_to(__file__), "it is a link"),
    "directory": (Path.mkdir, "not a regular file"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_what_is_no_regular_file_is_not_read(trap: str, tmp_path: Path) -> None:
    """Nor waited for, and a link is not followed."""
    file = tmp_path / "file"
    lay, problem = TRAPS[trap]
    lay(file)

    with pytest.raises(OSError, match=problem):
        content(file, 100)
    assert (beginning(file), text_of(file), number_in(file)) == (None, None, None)


def test_mounted_secret_is_a_link_that_may_be_followed(tmp_path: Path) -> None:
    """To a regular file, not to a pipe or a device."""
    file = tmp_path / "token"
    file.symlink_to("data")
    (tmp_path / "data").write_text("secret")
    assert content(file, 100, follows_links=True) == b"secret"
    file.unlink()
    file.symlink_to("/dev/zero")

    with pytest.raises(OSError, match="not a regular file"):
        content(file, 100, follows_links=True)


# Drivers write words where a counter is missing; counters of 64 bits stay exact.
@pytest.mark.parametrize(
    ("text", "number"),
    [
        *((text, None) for text in ("N/A (no PMA)", "", "-1", "1 2", "0x10")),
        ("18446744073709551615", 2**64 - 1),
    ],
)
def test_count_is_a_number_and_nothing_else_is(
    text: str, number: int | None, tmp_path: Path
) -> None:
    (tmp_path / "counter").write_text(f"{text}\n")

    assert number_in(tmp_path / "counter") == number


def test_folder_that_cannot_be_listed_is_empty(tmp_path: Path) -> None:
    for name in "ba":
        (tmp_path / name).touch()

    assert names_in(tmp_path) == ["a", "b"]
    assert names_in(tmp_path / "missing") == names_in(Path(__file__)) == []


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("5", (5,)),
        ("0-2,8\n", (0, 1, 2, 8)),
        ("0-1,4-5", (0, 1, 4, 5)),
        ("1-", (1,)),
        ("3-1", ()),
        ("\n", ()),
        ("", ()),
        ("all", ()),
        ("3-x", ()),
        ("x", ()),
    ],
)
def test_lists_of_cpus_are_read(text: str, cpus: tuple[int, ...]) -> None:
    """Every form that the kernel writes; a NUMA node of memory only has an empty one."""
    assert cpu_list(text) == cpus


def test_list_of_cpus_is_bounded() -> None:
    """A file that is none cannot fill the memory."""
    assert len(cpu_list("0-99999999999")) == MOST_CPUS
