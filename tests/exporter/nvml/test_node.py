"""What is known of a node's GPUs: which are expected and bound, why none is read, what travels."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from exporter.nvml import sample as sample_module
from exporter.nvml.backoff import Backoff
from exporter.nvml.calls import Calls
from exporter.nvml.expected import FILE_NAME, ExpectedGpus
from exporter.nvml.sample import GpuSample, NodeSample
from exporter.nvml.timing import Timing
from exporter.nvml.worker import node as node_module
from exporter.nvml.worker.node import LOOK_SECONDS, BoundGpus, NeedsNewProcess, NodeSampler
from tests.exporter.node import Clock


def gpu(uuid: str, place: str | None = None) -> GpuSample:
    return GpuSample(0, up=True, uuid=uuid, pci_bus_id=f"at {uuid}" if place is None else place)


A, B, C = gpu("a"), gpu("b"), gpu("c")


def seen(directory: Path | None, *gpus: GpuSample, number: int = 0) -> ExpectedGpus:
    """Return what an exporter expects that starts on a node with *gpus*."""
    expected = ExpectedGpus(directory, number)
    expected.see(NodeSample(1.0, len(gpus), gpus=gpus))
    return expected


# What each exporter after the other saw, what --gpus.expected says, how many are expected at last,
# and which of them are missing where only GPU a is listed.
@pytest.mark.parametrize(
    ("runs", "flag", "number", "missing"),
    [
        ([[]], 0, None, []),
        # The next exporter, even after a reboot, names the GPU that fell off the bus.
        ([[A, B], [A]], 0, 2, ["b"]),
        # Another GPU in its slot ends a GPU's being expected; a move to another slot does not.
        ([[gpu("b", "1"), gpu("d", "2")], [gpu("d", "3"), gpu("e", "1")]], 0, 2, ["d", "e"]),
        # A GPU without a bus id has no place; one lost before it was opened is not learnt yet.
        ([[gpu("a", "")], [gpu("b", "")], [GpuSample(0, up=False)]], 0, 2, ["b"]),
        # With --gpus.expected no more are missing than that many less those listed.
        ([[A, B, C]], 2, 2, ["b"]),
        ([[A, B, C]], 4, 4, ["b", "c"]),
    ],
    ids=["no GPU", "restart", "replaced", "nameless", "2 of 3", "4 of 3"],
)
def test_gpus_that_were_once_there_are_expected(
    tmp_path: Path, runs: list[list[GpuSample]], flag: int, number: int | None, missing: list[str]
) -> None:
    for gpus in runs:
        expected = seen(tmp_path, *gpus, number=flag)

    assert expected.number == number
    assert sorted(expected.missing([A])) == missing
    assert [path.name for path in tmp_path.iterdir()] == ([FILE_NAME] if number else [])


@pytest.mark.parametrize("text", ["[]", '{"gpus": {"GPU-a": 1}}', "\xff"])
def test_list_starts_over_when_it_is_damaged_or_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """It is written when something changed: a sample a second costs no write."""
    (tmp_path / FILE_NAME).write_text(text, encoding="latin-1")
    expected = seen(tmp_path, A)
    assert expected.number == ExpectedGpus(tmp_path).number == 1
    (said,) = caplog.messages
    assert said == f"{tmp_path}/{FILE_NAME} is damaged; the list of expected GPUs starts over"

    (tmp_path / FILE_NAME).unlink()
    expected.see(NodeSample(1.0, 1, gpus=(A,)))
    assert not (tmp_path / FILE_NAME).exists()


def test_directory_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """GPUs are then expected until the exporter ends, which is said once and prevents nothing."""
    expected = seen(tmp_path / "absent", A)
    expected.see(NodeSample(1.0, 1, gpus=(B,)))
    (tmp_path / FILE_NAME).mkdir()

    assert (expected.missing([]), ExpectedGpus(tmp_path).number) == (["a", "b"], None)
    cannot_write, cannot_read = caplog.messages
    assert "gpus.json: No such file or directory" in cannot_write
    assert "--gpus.expected" in cannot_write
    assert "cannot read" in cannot_read


def test_change_of_bound_gpus_is_seen_twice(tmp_path: Path) -> None:
    """A GPU that is gone counts once two looks in a row agree, ten seconds apart.

    Between two looks, or in one of them alone, it may be away. No driver, or a container that
    cannot see it, is not a change.
    """
    clock, gpu = Clock(), tmp_path / "gpus" / "10"
    gpu.mkdir(parents=True)
    bound, unknown, told = BoundGpus(gpu.parent, clock), BoundGpus(tmp_path / "none", clock), []
    for is_there in (False, True, False, False):
        if is_there:
            gpu.mkdir()
        elif gpu.exists():
            gpu.rmdir()
        assert not bound.have_changed()
        clock.seconds += LOOK_SECONDS
        told.append((bound.have_changed(), unknown.have_changed()))

    assert told == [(False, False)] * 3 + [(True, False)]


def test_sample_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values travel without names, so those of a worker with other fields are rejected."""
    line = NodeSample(1.0, 0).to_json()
    monkeypatch.setattr(sample_module, "LAYOUT", 1)

    with pytest.raises(ValueError, match="a sample with layout"):
        NodeSample.from_json(line)


def test_wait_doubles_up_to_the_cap_and_starts_anew_after_success() -> None:
    """What always fails costs little; what works again is tried at once."""
    backoff = Backoff(first_seconds=1.0, cap_seconds=5.0)

    assert [backoff.next_seconds() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next_seconds() == 1.0


class Node:
    """A node whose library does what a test says, sampled on a clock that the test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # What a function fails with, and how often it was called.
        self.codes = {
            "nvmlSystemGetDriverVersion": pynvml.NVML_ERROR_UNKNOWN,
            "nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST,
        }
        self.asked: Counter[str] = Counter()
        self.gpus = 0
        self.changed = False  # The GPUs that the kernel module drives are others.
        self.clock = Clock()
        monkeypatch.setattr(time, "monotonic", self.clock)
        for name in (*self.codes, "nvmlInit", "nvmlShutdown"):
            monkeypatch.setattr(pynvml, name, self.answering(name, lambda: None))
        count = self.answering("nvmlDeviceGetCount", lambda: self.gpus)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", count)
        monkeypatch.setattr(pynvml, "nvmlSystemGetNVMLVersion", lambda: "13")
        monkeypatch.setattr(node_module, "BoundGpus", lambda: self)
        self.sampler = NodeSampler(Timing(retry_seconds=1.0, path_kmsg="/nowhere"))

    def answering(self, name: str, value: Callable[[], object]) -> Callable[..., object]:
        def answer(*_: object) -> object:
            self.asked[name] += 1
            if code := self.codes.get(name):
                raise pynvml.NVMLError(code)
            return value()

        answer.__name__ = name
        return answer

    def have_changed(self) -> bool:
        return self.changed

    def after(self, seconds: float) -> NodeSample:
        self.clock.seconds += seconds
        return self.sampler.sample()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    node = Node(monkeypatch)
    yield node
    node.sampler.close()


def test_driver_without_gpu_is_closed_and_asked_again(node: Node) -> None:
    """NVML counts once, when it is opened; a driver that cannot count does not end the worker."""
    assert (node.after(0.0).error_reason, node.asked["nvmlShutdown"]) == ("no_gpu", 1)
    node.codes["nvmlDeviceGetCount"] = pynvml.NVML_ERROR_UNKNOWN
    assert node.after(0.9).error_reason == "no_gpu"
    failed = node.after(0.1)
    assert (failed.error_reason, node.asked["nvmlShutdown"]) == ("other", 2)
    assert "nvmlDeviceGetCount returned 999" in failed.error
    assert "in a container that lost its devices, restart the container" in failed.error
    node.codes["nvmlDeviceGetCount"], node.gpus = 0, 1
    sample = node.after(2.0)

    assert (sample.error_reason, sample.gpus_visible, node.asked["nvmlShutdown"]) == (None, 1, 2)
    # A GPU is listed though the driver will not say its version.
    assert (sample.driver_version, sample.nvml_version) == (None, "13")


def test_library_that_never_fits_makes_way_after_a_minute(node: Node) -> None:
    """A mismatch is reported for that long, while the log is quiet; then a new process tries."""
    node.codes["nvmlInit"] = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    for seconds in (0.0, 59.0, 0.9):
        assert node.after(seconds).error_reason == "version_mismatch"

    node.after(0.1)
    with pytest.raises(NeedsNewProcess):
        node.after(0.0)


def test_other_gpus_need_a_new_process(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML counts once. While a call hangs it is left to the supervisor, which knows of that."""
    node.gpus = 1
    sample = node.after(0.0)
    node.changed = True
    with monkeypatch.context() as patch:
        patch.setattr(Calls, "stuck", lambda self: sample)
        assert node.after(1.0).gpus_visible == 1
    with pytest.raises(NeedsNewProcess):
        node.after(1.0)
