"""A GPU that is gone after a restart is still expected, unless it was taken out on purpose."""

from pathlib import Path

import pytest

from exporter.nvml.expected import FILE_NAME, ExpectedGpus
from exporter.nvml.sample import GpuSample, NodeSample

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
