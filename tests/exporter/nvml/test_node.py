"""What is known of a node's GPUs: which are expected, which are bound, and how a sample travels."""

from pathlib import Path

import pytest

from exporter.nvml import sample as sample_module
from exporter.nvml.backoff import Backoff
from exporter.nvml.expected import FILE_NAME, ExpectedGpus
from exporter.nvml.process import END_SECONDS
from exporter.nvml.sample import (
    GpuSample,
    NodeSample,
    pcie_bytes_per_second,
)
from exporter.nvml.timing import Timing
from exporter.nvml.worker.driver_devices import LOOK_SECONDS, BoundGpus

A, B, C = "GPU-a", "GPU-b", "GPU-c"


def gpu(uuid: str, place: str = "", index: int = 0) -> GpuSample:
    return GpuSample(index, up=True, uuid=uuid, pci_bus_id=place or f"at {uuid}")


def sample(*gpus: GpuSample) -> NodeSample:
    return NodeSample(1.0, len(gpus), gpus=gpus)


def seen(directory: Path | None, *gpus: GpuSample) -> ExpectedGpus:
    """Return what is expected on a node that was seen to have *gpus*."""
    expected = ExpectedGpus(directory)
    expected.see(sample(*gpus))
    return expected


def test_node_without_gpu_expects_none(tmp_path: Path) -> None:
    """Where there never was a GPU nothing is expected, written or complained about."""
    expected = seen(tmp_path)

    assert expected.number is None
    assert expected.missing([]) == []
    assert list(tmp_path.iterdir()) == []


def test_missing_gpu_is_remembered_over_a_restart(tmp_path: Path) -> None:
    """The next exporter, even after a reboot, names the GPU that fell off the bus."""
    seen(tmp_path, gpu(A), gpu(B))
    after = seen(tmp_path, gpu(A))

    assert after.number == 2
    assert after.missing([gpu(A)]) == [B]
    assert after.missing([]) == [A, B]
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_replaced_gpu_is_not_expected_for_ever(tmp_path: Path) -> None:
    """Another GPU in its slot ends a GPU's being expected; a move to another slot does not."""
    seen(tmp_path, gpu(A, "slot 1"), gpu(B, "slot 2"))
    after = seen(tmp_path, gpu(C, "slot 1"), gpu(B, "slot 3"))

    assert after.number == 2
    assert after.missing([]) == [B, C]


def test_gpus_whose_place_or_name_is_unknown_replace_nobody() -> None:
    """A GPU without a PCI bus id has no place; one lost before it was opened is not learnt yet."""
    expected = seen(None, GpuSample(0, up=True, uuid=A))
    for each in (GpuSample(0, up=True, uuid=B), GpuSample(0, up=False)):
        expected.see(sample(each))

    assert expected.number == 2


def test_deleted_list_starts_over(tmp_path: Path) -> None:
    """After GPUs were taken out for good, the operator deletes it and restarts the exporter."""
    seen(tmp_path, gpu(A), gpu(B), gpu(C))
    (tmp_path / FILE_NAME).unlink()

    assert seen(tmp_path, gpu(B)).missing([]) == [B]
    assert ExpectedGpus(tmp_path).number == 1


@pytest.mark.parametrize(("number", "missing"), [(1, []), (2, [B]), (3, [B, C]), (4, [B, C])])
def test_given_number_wins(tmp_path: Path, number: int, missing: list[str]) -> None:
    """With --gpus.expected no more GPUs are missing than that many less those listed."""
    seen(tmp_path, gpu(A), gpu(B), gpu(C))
    expected = ExpectedGpus(tmp_path, number)

    assert expected.number == number
    assert expected.missing([gpu(A)]) == missing


@pytest.mark.parametrize("text", ["", "{", "[]", '{"gpus": {"GPU-a": 1}}', "\xff"])
def test_damaged_file_is_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """An unreadable list starts over, and is rewritten with the first GPU."""
    (tmp_path / FILE_NAME).write_text(text, encoding="latin-1")
    expected = seen(tmp_path, gpu(A))

    assert expected.number == 1
    assert caplog.messages == [
        f"{tmp_path}/{FILE_NAME} is damaged; the list of expected GPUs starts over"
    ]
    assert ExpectedGpus(tmp_path).number == 1


def test_directory_that_is_not_there_is_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a place to write GPUs are expected until the exporter ends, which is said once."""
    expected = seen(tmp_path / "absent", gpu(A))
    expected.see(sample(gpu(B)))

    assert expected.missing([]) == [A, B]
    (message,) = caplog.messages
    assert "gpus.json: No such file or directory" in message
    assert "--gpus.expected" in message


def test_file_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An invalid file does not prevent the start."""
    (tmp_path / FILE_NAME).mkdir()

    assert ExpectedGpus(tmp_path).number is None
    assert "cannot read" in caplog.text


def test_file_is_written_only_when_something_changed(tmp_path: Path) -> None:
    """A sample a second costs no write a second."""
    expected = seen(tmp_path, gpu(A), gpu(B))
    (tmp_path / FILE_NAME).unlink()
    expected.see(sample(gpu(B), gpu(A)))

    assert not (tmp_path / FILE_NAME).exists()


class Directory:
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
    assert Directory(tmp_path / "absent").looks(3) == [False, False, False]


def test_change_is_told_when_it_is_seen_twice(tmp_path: Path) -> None:
    """A GPU that is gone, or new, counts once two looks in a row agree."""
    (tmp_path / "0000:10:00.0").mkdir()
    gone, new = Directory(tmp_path), Directory(tmp_path)
    (tmp_path / "0000:11:00.0").mkdir()
    assert new.looks(2) == [False, True]

    (tmp_path / "0000:10:00.0").rmdir()
    assert gone.looks(2) == [False, True]


def test_gpu_that_is_back_at_once_is_no_change(tmp_path: Path) -> None:
    """Between two looks, or in one of them alone, a GPU may be away."""
    (tmp_path / "0000:10:00.0").mkdir()
    driver = Directory(tmp_path)
    (tmp_path / "0000:10:00.0").rmdir()
    assert driver.looks(1) == [False]
    (tmp_path / "0000:10:00.0").mkdir()

    assert driver.looks(2) == [False, False]


def test_looks_are_seldom(tmp_path: Path) -> None:
    """The directory is read every ten seconds, however often it is asked."""
    driver = Directory(tmp_path)
    (tmp_path / "0000:10:00.0").mkdir()

    assert [driver.bound.have_changed() for _ in range(5)] == [False] * 5


@pytest.mark.parametrize("line", [b"hello", b"{}", b"[]", b'{"gpus": [{}], "stuck_call": null}'])
def test_anything_else_is_refused(line: bytes) -> None:
    """A line that is not a sample raises, so it is never taken for one."""
    with pytest.raises((ValueError, TypeError, KeyError)):
        NodeSample.from_json(line)


def test_sample_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values travel without names, so those of a worker with other fields are rejected."""
    line = NodeSample(1.0, 0).to_json()
    monkeypatch.setattr(sample_module, "LAYOUT", 1)

    with pytest.raises(ValueError, match="a sample with layout"):
        NodeSample.from_json(line)


@pytest.mark.parametrize(
    ("generation", "lanes", "carries"),
    [
        (1, 1, 250e6),
        (2, 4, 2e9),
        (3, 16, 8e9 / 8 * 128 / 130 * 16),
        (4, 16, 16e9 / 8 * 128 / 130 * 16),
        (5, 8, 32e9 / 8 * 128 / 130 * 8),
        (6, 16, 64e9 / 8 * 242 / 256 * 16),
        (7, 16, None),  # Of a GPU that is newer than this exporter.
        (None, 16, None),
        (5, None, None),
    ],
)
def test_pcie_link_carries_what_is_left_of_its_transfers(
    generation: int | None, lanes: int | None, carries: float | None
) -> None:
    """Rounded up by less than a thousandth: a counter may not wrap sooner than is thought."""
    rate = pcie_bytes_per_second(generation, lanes)
    assert rate == carries or (carries and rate and carries <= rate < 1.001 * carries)


def test_flags_carry_every_setting_to_the_worker() -> None:
    """The worker runs with exactly the timing that its supervisor has."""
    timing = Timing(0.25, 2.5, 30.0, 7.0, 12.0)

    assert Timing.from_arguments(timing.to_arguments()) == timing
    assert Timing.from_arguments([]) == Timing()


def test_slow_readings_are_not_stale_before_the_next_one() -> None:
    """Reading the GPUs seldom does not make every sample stale."""
    assert Timing(interval_seconds=1.0, stale_seconds=5.0).patience_seconds == 5.0
    assert Timing(interval_seconds=15.0, stale_seconds=5.0).patience_seconds == 45.0


def test_hung_call_is_mended_within_ten_seconds() -> None:
    """What may pass before a hung worker is replaced leaves a second for the new one to start."""
    timing = Timing()

    assert timing.interval_seconds + timing.patience_seconds + 2 * END_SECONDS <= 9


def test_wait_doubles_up_to_the_cap_and_starts_anew_after_success() -> None:
    """What always fails costs little; what works again is tried at once."""
    backoff = Backoff(first_seconds=1.0, cap_seconds=5.0)

    assert [backoff.next_seconds() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next_seconds() == 1.0
