"""A GPU that the driver takes on or lets go of is noticed without NVML, once it is settled."""

from pathlib import Path

from exporter.nvml.worker.driver_devices import LOOK_SECONDS, BoundGpus


class Driver:
    """The directory that the kernel module keeps, and a clock."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 100.0
        self.bound = BoundGpus(directory, lambda: self.now)

    def looks(self, number: int) -> list[bool]:
        """Return what *number* looks say."""
        found = []
        for _ in range(number):
            self.now += LOOK_SECONDS
            found.append(self.bound.have_changed())
        return found


def test_node_without_driver_never_changes(tmp_path: Path) -> None:
    """No driver, or a container that cannot see it, is not a change."""
    assert Driver(tmp_path / "absent").looks(3) == [False, False, False]


def test_change_is_told_when_it_is_seen_twice(tmp_path: Path) -> None:
    """A GPU that is gone, or new, counts once two looks in a row agree."""
    (tmp_path / "0000:10:00.0").mkdir()
    gone, new = Driver(tmp_path), Driver(tmp_path)
    (tmp_path / "0000:11:00.0").mkdir()
    assert new.looks(2) == [False, True]

    (tmp_path / "0000:10:00.0").rmdir()
    assert gone.looks(2) == [False, True]


def test_gpu_that_is_back_at_once_is_no_change(tmp_path: Path) -> None:
    """Between two looks, or in one of them alone, a GPU may be away."""
    (tmp_path / "0000:10:00.0").mkdir()
    driver = Driver(tmp_path)
    (tmp_path / "0000:10:00.0").rmdir()
    assert driver.looks(1) == [False]
    (tmp_path / "0000:10:00.0").mkdir()

    assert driver.looks(2) == [False, False]


def test_looks_are_seldom(tmp_path: Path) -> None:
    """The directory is read every ten seconds, however often it is asked."""
    driver = Driver(tmp_path)
    (tmp_path / "0000:10:00.0").mkdir()

    assert [driver.bound.have_changed() for _ in range(5)] == [False] * 5
