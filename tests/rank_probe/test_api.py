"""Tests of the manual API in one process, without torch's help."""

import copy
import logging
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rank_probe as probe
from rank_probe import api
from rank_probe.report import push
from rank_probe.wire.stages import OTHER, STAGES
from tests.rank_probe.sink import PATIENCE_SECONDS, Sink, listening


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    """A started probe, rank 1 of 2 of job `api`, and what it pushes."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "RANKSKEW_JOB_ID": "api"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANKSKEW_EXPORTER", f"unix:{tmp_path}/s")
    monkeypatch.setattr(push, "TIMEOUT_SECONDS", PATIENCE_SECONDS)
    with listening(tmp_path / "s") as sink:
        yield sink
        probe.finish()


@pytest.mark.parametrize("switch", ["before start", "RANK_PROBE=0"])
def test_everything_is_a_no_op_without_a_probe(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    """A script with the calls left in runs as it did: before `start`, and if it is kept out."""
    if switch == "RANK_PROBE=0":
        monkeypatch.setenv("RANK_PROBE", "0")
        probe.start()
    with probe.stage("forward"):
        assert list(probe.wrap([1, 2])) == [1, 2]
    probe.step()
    probe.finish()

    assert sink.snapshots == []


def test_loop_by_hand_arrives_at_the_exporter(sink: Sink) -> None:
    """Stages named by hand, steps and the clean end are pushed."""
    probe.start()
    for _ in probe.wrap(range(3)):
        with probe.stage("forward"):
            pass
        with probe.stage("optimizer"):
            pass
        probe.step()
    probe.finish()
    last = sink.snapshots[-1]

    assert last["steps"] == 3
    assert set(last["stage_seconds"]) == {"data", "forward", "optimizer", "other"}
    assert (last["job_id"], last["rank"], last["world_size"]) == ("api", 1, 2)
    assert last["finished"]
    assert last["rank_info"]["source"] == "manual"
    assert last["busy_seconds"] == pytest.approx(sum(last["stage_seconds"].values()))


def test_misspelt_stage_is_said_and_timed_as_other(
    sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    """A typo costs a label, not the training; the log lists the stages, once."""
    probe.start()
    with caplog.at_level(logging.WARNING, "rank_probe"):
        for _ in range(2):
            with probe.stage("forwrad"):
                assert api._probe is not None
                assert api._probe.timeline.state.stage == OTHER

    assert len(caplog.records) == 1
    assert "'forwrad' is not a stage" in caplog.text
    assert all(stage in caplog.text for stage in STAGES)


def test_wrong_endpoint_turns_the_probe_off_with_one_sentence(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad RANKSKEW_EXPORTER is explained; training goes on without the probe."""
    monkeypatch.setenv("RANKSKEW_EXPORTER", "nonsense")
    with caplog.at_level(logging.WARNING, "rank_probe"):
        probe.start()

    assert api._probe is None
    assert "rank_probe is off: RANKSKEW_EXPORTER is 'nonsense'" in caplog.text


def test_what_a_second_start_cannot_change_is_said_once(
    sink: Sink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `-m rank_probe` the probe has started before the script; what is as it was is fine."""
    probe.start(automatic=True)
    with caplog.at_level(logging.WARNING, "rank_probe"):
        probe.start()
        probe.start(job_id="api", automatic=True)
        assert caplog.text == ""
        for _ in range(2):
            probe.start(job_id="mine", peer_group="p", measure=lambda _: (1, None, None))
    probe.step()  # From now on it is known which rank it is.
    probe.finish()

    (record,) = caplog.records
    assert "start() ignores its job_id, peer_group, measure" in record.getMessage()
    assert "RANKSKEW_JOB_ID" in record.getMessage()
    assert sink.snapshots[-1]["job_id"] == "api"


class Loader(list[int]):
    """One with an attribute, and its own way of being copied."""

    batch_size = 7

    def __deepcopy__(self, memo: dict[int, Any]) -> list[int]:
        return [*self, 4]

    def __getnewargs_ex__(self) -> None:
        raise AssertionError("for the loader, not for what wraps it")


def test_wrapped_loader_is_still_the_loader() -> None:
    """Length, attributes and exceptions are the loader's own."""
    wrapped = probe.wrap(Loader([1, 2, 3]))

    assert (len(wrapped), wrapped.batch_size) == (3, 7)
    with pytest.raises(TypeError):
        len(probe.wrap(iter([])))


@pytest.mark.parametrize(
    ("copied", "loader", "batches"),
    [
        (copy.copy, [1, 2, 3], [1, 2, 3]),
        (copy.deepcopy, [1, 2, 3], [1, 2, 3]),
        (copy.deepcopy, Loader([1, 2, 3]), [1, 2, 3, 4]),
        (lambda loader: pickle.loads(pickle.dumps(loader)), [1, 2, 3], [1, 2, 3]),
    ],
)
def test_wrapped_loader_can_be_copied(
    copied: Callable[[Any], Any], loader: list[int], batches: list[int]
) -> None:
    """A copy, also one through pickle, is a timed loader of the same batches."""
    again = copied(probe.wrap(loader))

    assert type(again) is api.TimedLoader
    assert list(again) == batches


def test_users_exception_passes_and_is_timed(sink: Sink) -> None:
    """From a stage or a fetch it comes unchanged; the time before is kept, the stage is left."""

    def broken() -> Iterator[int]:
        raise OSError("disk")
        yield 1

    probe.start()
    with pytest.raises(ZeroDivisionError), probe.stage("forward"):
        _ = 1 / 0
    with pytest.raises(OSError, match="disk"):
        list(probe.wrap(broken()))
    assert api._probe is not None
    assert api._probe.timeline.state.stage == OTHER
    probe.step()
    probe.finish()

    assert sink.snapshots[-1]["stage_seconds"]["forward"] > 0


def _in_child(answers: "multiprocessing.SimpleQueue[tuple[bool, int]]") -> None:
    with probe.stage("forward"):
        pass
    probe.step()
    answers.put((api._probe is None, os.getpid()))


def test_forked_child_is_not_the_rank(sink: Sink) -> None:
    """A loader's worker process inherits the probe switched off."""
    probe.start()
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.SimpleQueue[tuple[bool, int]] = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(answers,))
    child.start()
    off, pid = answers.get()
    child.join()
    probe.finish()

    assert off
    assert child.exitcode == 0
    assert pid not in {snapshot["pid"] for snapshot in sink.snapshots}


def test_import_needs_nothing() -> None:
    """The base install imports with neither torch nor any other package there."""
    program = """
import sys
class OnlyStandardLibrary:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names | {"rank_probe"}:
            raise ImportError(f"{name} is not in the standard library")
sys.meta_path.insert(0, OnlyStandardLibrary())
import rank_probe, rank_probe.__main__
with rank_probe.stage("data"): pass
print(rank_probe.__version__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stderr == ""
    assert done.stdout.strip() == probe.__version__
