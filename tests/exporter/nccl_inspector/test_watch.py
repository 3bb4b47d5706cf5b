"""NCCL Inspector's lines are read, and its files are followed while they grow."""

import json
import os
from pathlib import Path

import pytest

from exporter.nccl_inspector import watch as inspector
from exporter.nccl_inspector.records import Record, parse
from exporter.nccl_inspector.watch import WINDOW_SECONDS, InspectorWatch
from tests.exporter.clock import Clock
from tests.exporter.nccl_inspector.lines import SAMPLE, line

HOST = "example-hostname.cluster.local"
LOG = "example-hostname-pid7.log"


def test_published_sample_is_read() -> None:
    """Times in seconds, bandwidth in bytes per second, in the convention of nccl-tests:

    bytes over seconds, times 2 (n - 1) / n for an all-reduce.
    """
    record = parse(json.dumps(SAMPLE).encode())
    moved = SAMPLE["coll_perf"]["coll_msg_size_bytes"]

    assert record == Record("example-hostname", 1639453, "all_reduce", 0.061974, 485.119099e9)
    assert record.bytes_per_second == pytest.approx(moved / record.seconds * 2 * 7 / 8, rel=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        json.dumps(SAMPLE)[:-9],
        json.dumps({"header": {}, "metadata": SAMPLE["metadata"], "p2p_perf": {"p2p": "Send"}}),
        line(coll="AllToAllvW"),
        line(coll=["AllReduce"]),
        line(coll_exec_time_us=0),
        line(coll_exec_time_us="soon"),
        line(coll_busbw_gbs=float("nan")),
        line(coll_busbw_gbs=-1),
        line(coll_busbw_gbs=1e300),
    ],
)
def test_line_that_says_nothing_is_passed_over(text: str) -> None:
    """Half a line, another kind of event, figures that are none."""
    assert parse(text.encode()) is None


class Job:
    """A process that writes, and an exporter that has looked once before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.watch = InspectorWatch(folder, HOST, self.clock)
        self.watch.look()

    def writes(self, text: str, name: str = LOG) -> None:
        with (self.folder / name).open("a") as file:
            file.write(text)

    def reduces(self, speed: float) -> None:
        """Write an all-reduce of process 7 at so many GB/s."""
        self.writes(line(7, coll_busbw_gbs=speed))

    def speeds(self) -> dict[int, dict[str, float]]:
        """Return what a look finds, in GB/s."""
        self.watch.look()
        return {
            pid: {name: round(speed / 1e9, 3) for name, speed in each.bytes_per_second.items()}
            for pid, each in self.watch.latest().items()
        }


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_speed_is_a_mean_over_time(job: Job) -> None:
    """A collective that takes three times as long counts three times."""
    job.writes(line(7, coll_exec_time_us=100, coll_busbw_gbs=400.0))
    job.writes(line(7, coll_exec_time_us=300, coll_busbw_gbs=200.0))
    job.writes(line(7, coll="AllGather", coll_busbw_gbs=90.0))
    # A shared directory has files of all nodes, where the same process ids exist.
    job.writes(line(7, host="other-hostname"), name="other")

    assert job.speeds() == {7: {"all_reduce": 250.0, "all_gather": 90.0}}


def test_line_is_read_once_it_is_whole(job: Job) -> None:
    """NCCL may be in the middle of it; what is longer than any line takes no memory."""
    text = line(7, coll_busbw_gbs=400.0)
    job.writes(text[:100])
    assert job.speeds() == {}
    job.writes(text[100:])
    assert job.speeds() == {7: {"all_reduce": 400.0}}

    job.writes("x" * (inspector.LONGEST_LINE + 1))
    job.speeds()
    (file,) = job.watch._files.values()
    assert file.rest == b""


def test_speed_is_that_of_the_last_minute(job: Job) -> None:
    """What was fast an hour ago hides nothing, and a process that writes no more has no speed."""
    job.reduces(400.0)
    job.speeds()
    job.clock.seconds += WINDOW_SECONDS - 1
    job.reduces(100.0)
    assert job.speeds() == {7: {"all_reduce": 250.0}}

    job.clock.seconds += 2
    assert job.speeds() == {7: {"all_reduce": 100.0}}
    job.clock.seconds += WINDOW_SECONDS
    assert job.speeds() == {}


def test_what_was_written_before_the_exporter_began_does_not_count(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text(line(7, coll_busbw_gbs=400.0))
    job = Job(tmp_path)
    assert job.speeds() == {}

    job.reduces(100.0)
    assert job.speeds() == {7: {"all_reduce": 100.0}}


def test_torrent_of_lines_is_read_at_its_end(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes bounded time and memory; the newest lines count."""
    text = line(7, coll_busbw_gbs=100.0)
    monkeypatch.setattr(inspector, "MOST_BYTES_A_LOOK", len(text) + 10)
    job.writes(line(7, coll_busbw_gbs=900.0) * 50 + text)

    assert job.speeds() == {7: {"all_reduce": 100.0}}


def test_file_that_was_cut_is_read_from_its_beginning(job: Job) -> None:
    """A job that starts again may write over its old file."""
    job.writes(line(7) * 3)
    job.speeds()
    (job.folder / LOG).write_text(line(8, coll_busbw_gbs=50.0))

    assert job.speeds() == {8: {"all_reduce": 50.0}}


def test_pipes_links_and_folders_are_not_read(job: Job, tmp_path: Path) -> None:
    """Any user may write there: the exporter neither blocks nor follows."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    elsewhere = tmp_path / "folder" / "secret"
    elsewhere.write_text(line(7))
    (tmp_path / "link").symlink_to(elsewhere)

    assert job.speeds() == {}


def test_directory_that_is_not_there_yet_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The job may make it later."""
    job = Job(tmp_path / "later")
    job.watch.look()
    assert len(caplog.records) == 1

    (tmp_path / "later").mkdir()
    job.reduces(100.0)
    assert job.speeds() == {7: {"all_reduce": 100.0}}
