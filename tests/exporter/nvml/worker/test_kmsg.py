import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.nvml.worker.kmsg import Kmsg, open_kmsg

FALLEN = (
    "3,1234,98765,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=77, GPU has fallen off the bus.\n"
    " SUBSYSTEM=pci\n DEVICE=+pci:0000:1b:00.0\n"
)
NVML_BUS_ID = "00000000:1B:00.0"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with an old error in it."""
    path = tmp_path / "kmsg"
    path.write_text(FALLEN)
    return path


def opened(path: Path) -> Kmsg:
    kmsg = open_kmsg(str(path))
    assert kmsg is not None
    return kmsg


def after(log: Path, text: str) -> Kmsg:
    """Return the reader of *log* after the kernel has written *text*."""
    kmsg = opened(log)
    with log.open("a", encoding="latin-1") as file:
        file.write(text)
    kmsg.read()
    return kmsg


@pytest.mark.parametrize("path", ["/nowhere/kmsg", "/dev/null"])
def test_host_whose_log_cannot_be_read_has_none(path: str) -> None:
    """No file, or the /dev/null that containers have in its place: not a log without errors."""
    assert open_kmsg(path) is None


def test_error_is_counted_for_the_gpu_at_that_place(log: Path) -> None:
    """The kernel's bus id has another form than NVML's and means the same GPU."""
    kmsg = after(log, FALLEN + FALLEN.replace("1b:00", "3d:00").replace("79", "119"))

    assert kmsg.counts(NVML_BUS_ID).by_kind() == {"79": 1}
    assert kmsg.counts("00000000:3D:00.0").by_kind() == {"119": 1}
    assert kmsg.counts("00000001:1B:00.0").events == 0


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("(PCI:0000:1b:00 GPU-I:05)", "94, pid='<unknown>', name=<unknown>, Contained"),
        ("(PCI:0000:1B:00.0)", "94"),
        ("(0000:1b:00)", "94, Channel 00000001"),
    ],
)
def test_every_form_of_the_message_is_known(log: Path, place: str, kind: str) -> None:
    """A MIG instance, a function number or an older driver change the form, not the meaning."""
    kmsg = after(log, f"4,1,2,c;nvidia 0000:1b:00.0: NVRM: Xid {place}: {kind}\n")

    assert kmsg.counts(NVML_BUS_ID).by_kind() == {"94": 1}


@pytest.mark.parametrize(
    "line",
    [
        "",
        FALLEN.replace("3,1234", "11,1234", 1),
        "6,1,2,-;NVRM: GPU at PCI:0000:1b:00: GPU-00000000\n",
        "6,1,2,-;usb 1-1: new device\n \xff\n\n",
    ],
    ids=["only what was there", "written by a program", "another message", "anything"],
)
def test_other_lines_count_nothing(log: Path, line: str) -> None:
    """Each start would count old errors again, and only the kernel reports any."""
    assert after(log, line).counts(NVML_BUS_ID).events == 0


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple[Kmsg, int]]:
    """A log that, as the real one, has a reader wait for more; and where to write."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    kmsg = opened(path)
    writer = os.open(path, os.O_WRONLY)
    yield kmsg, writer
    os.close(writer)


def test_reading_never_waits_and_halves_of_a_line_are_joined(pipe: tuple[Kmsg, int]) -> None:
    """The sample goes out in time though the kernel has nothing to say."""
    kmsg, writer = pipe
    kmsg.read()
    os.write(writer, FALLEN[:40].encode())
    kmsg.read()
    os.write(writer, FALLEN[40:].encode())
    kmsg.read()

    assert kmsg.counts(NVML_BUS_ID).events == 1


def test_overwritten_log_is_read_on(
    pipe: tuple[Kmsg, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood that pushed records out costs those and not what comes after."""
    kmsg, writer = pipe
    os.write(writer, FALLEN.encode())
    real_read = os.read
    failed: list[bool] = []

    def read(file: int, size: int) -> bytes:
        if not failed:
            failed.append(True)
            raise BrokenPipeError
        return real_read(file, size)

    monkeypatch.setattr(os, "read", read)
    kmsg.read()

    assert kmsg.counts(NVML_BUS_ID).events == 1
