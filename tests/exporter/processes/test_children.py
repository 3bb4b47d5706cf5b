"""Descendants are found whatever comes and goes, and finding them stays cheap."""

from pathlib import Path

import pytest

from exporter.processes import children
from exporter.processes.children import LOOKS_BEFORE_READ_AGAIN, Children, family
from exporter.processes.usage import Usage, stat
from tests.exporter.fake_proc import FakeProc


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def test_without_a_proc_file_system_there_are_no_children(tmp_path: Path) -> None:
    """Nothing is found, and nothing is raised."""
    assert Children(tmp_path / "missing").look() == {}


def test_descendants_are_found_but_not_other_ranks(fake: FakeProc) -> None:
    """Children and their children, parents first, without another rank and what it started."""
    for pid, parent in ((10, 1), (11, 10), (12, 11), (20, 10), (21, 20), (30, 1)):
        fake.use(pid, parent=parent)
    found = Children(fake.path).look()

    assert family(10, found, frozenset({20})) == {10: 0, 11: 10, 12: 11}
    assert family(20, found, frozenset({10})) == {20: 0, 21: 20}


def test_circle_of_parents_ends(fake: FakeProc) -> None:
    """Ids that were reused between two reads cannot hold us up."""
    fake.use(10, parent=11)
    fake.use(11, parent=10)

    assert family(10, Children(fake.path).look(), frozenset()) == {10: 0, 11: 10}


def test_known_process_is_not_read_again(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look at thousands of processes lists them, and reads only the new ones."""
    read: list[int] = []

    def counted(procfs: Path, pid: int) -> Usage | None:
        read.append(pid)
        return stat(procfs, pid)

    monkeypatch.setattr(children, "stat", counted)
    for pid in range(21, 39):
        fake.use(pid)
    looks = Children(fake.path)
    looks.look()
    read.clear()
    fake.use(40)
    looks.look()

    assert read == [40, 22]  # The new one, and one whose turn it is.


def test_process_id_that_was_reused_is_noticed(fake: FakeProc) -> None:
    """After some looks every parent is read again."""
    fake.use(10, parent=1)
    looks = Children(fake.path)
    looks.look()
    fake.use(10, parent=7)
    found = [looks.look() for _ in range(LOOKS_BEFORE_READ_AGAIN)]

    assert 7 not in found[0]
    assert found[-1] == {0: [1], 7: [10]}


def test_reading_is_bounded(fake: FakeProc) -> None:
    """Of thousands of new processes, some are read now and the others at the next looks."""
    for pid in range(10, 30):
        fake.use(pid, parent=5)
    looks = Children(fake.path, most_read=15)

    assert len(looks.look().get(5, ())) < 20
    assert len(looks.look()[5]) == 20
