"""Who a process is by what its launcher set, its life in events, and the collector's pauses."""

import gc
import os
import signal
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rank_probe.measure.tape import PythonTape, new_tape
from rank_probe.process import children, garbage, identity
from rank_probe.process.garbage import GarbagePauses
from rank_probe.process.identity import from_environment, job_id, with_namespace
from rank_probe.process.lifecycle import Lifecycle, process_age_seconds
from rank_probe.process.own_rank import OwnRank
from rank_probe.report.lifecycle_events import QUIET_SECONDS, LifecycleEvents
from rank_probe.torch_hooks import process_group
from rank_probe.wire.snapshot import MOST_EVENTS
from rank_probe.wire.stages import CHECKPOINT, DATA, EVAL, STAGES
from tests.rank_probe.fakes import RANK_2_OF_4

NODE = os.uname().nodename
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAMESPACE": "nlp"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "GROUP_RANK": "1"}
TORCHRUN |= {"TORCHELASTIC_RUN_ID": "llama", "TORCHELASTIC_RESTART_COUNT": "2"}
SLURM = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "9", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1"}
SLURM |= {"SLURM_NODEID": "1", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"}
# flux-environment(7), what IBM's jsrun and HPE's PALS set beside their scheduler's job.
FLUX = {"FLUX_JOB_ID": "f7Qz", "FLUX_TASK_RANK": "5", "FLUX_JOB_SIZE": "8", "FLUX_JOB_NNODES": "2"}
FLUX |= {"FLUX_TASK_LOCAL_ID": "1"}
JSRUN = {"LSB_JOBID": "815", "JSM_NAMESPACE_RANK": "5", "JSM_NAMESPACE_SIZE": "8"}
JSRUN |= {"JSM_NAMESPACE_LOCAL_RANK": "1", "JSM_NAMESPACE_LOCAL_SIZE": "4"}
PALS = {"PBS_JOBID": "9.pbs", "PALS_RANKID": "5", "PALS_SIZE": "8", "PALS_NODEID": "1"}
PALS |= {"PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "4"}


def kept(environment: dict[str, str]) -> dict[str, str]:
    """Return what an exporter keeps of the *environment* of another process."""
    return {name: value for name, value in environment.items() if name in identity.VARIABLES}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, ("llama", "all", 5, 8, "1", "1", 2)),
        (SLURM, ("4711", "all", 9, 16, "1", "1", 1)),
        # One task a node runs torchrun: its ranks count, the job is SLURM's. torchrun counts
        # attempts from 0 again when SLURM starts it anew, so both counts matter.
        (TORCHRUN | SLURM, ("4711", "all", 5, 8, "1", "1", 3)),
        (TORCHRUN | {"RANKSKEW_PEER_GROUP": "pp1"}, ("llama", "pp1", 5, 8, "1", "1", 2)),
        # Flux in a job of SLURM: its broker was a task, and its job is one of several there.
        (SLURM | FLUX, ("f7Qz", "all", 5, 8, "1", "1", 1)),
        (JSRUN, ("815", "all", 5, 8, "1", "", 0)),
        (PALS, ("9.pbs", "all", 5, 8, "1", "1", 0)),
        # A script that starts ranks within a task of SLURM sets their number, not who they are.
        (SLURM | {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}, ("4711", "all", 9, 16, "0", "1", 1)),
    ],
)
def test_launcher_names_everything(environment: dict[str, str], expected: tuple[Any, ...]) -> None:
    """Job, peer group, rank, world size, local rank, node and attempt come from its variables."""
    me = from_environment(environment)

    assert me is not None
    assert astuple(me) == expected
    # Who keeps only VARIABLES of an environment finds the same in them.
    assert from_environment(kept(environment)) == me


def test_script_of_a_slurm_job_is_none_of_its_tasks() -> None:
    """The script runs before its tasks; a single rank that it starts is not rank 0 of many.

    A rank variable counts only together with one for the world size.
    """
    script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
    task = script | {"SLURM_STEP_ID": "0"}

    assert from_environment(script) is None
    assert not identity.is_certain(script)
    assert all(map(identity.is_certain, (task, FLUX, JSRUN, PALS)))
    assert identity.rank_source({"RANK": "0"} | task) == "SLURM_PROCID and SLURM_NTASKS"
    for impossible in ("", "x", "-1", "8", "9" * 5000):
        assert identity.rank_source({"RANK": impossible, "WORLD_SIZE": "8"}) is None
    assert from_environment(script | {"SLURM_NTASKS": "1", "SLURM_NNODES": "1"}) is not None


UNNAMED = "as nothing names the job"
BY_NODE = f"the node's name, {UNNAMED}"
BY_POD = "HOSTNAME, the pod's name"
BY_NAME = "POD_NAME, the pod's name"
IN_POD = "after the pod's namespace"
IN_KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
RUN = {"TORCHELASTIC_RUN_ID": "run"}
MINE = {"RANKSKEW_JOB_ID": "mine"}


@pytest.mark.parametrize(
    ("environment", "expected", "source"),
    [
        ({}, f"local-{NODE}", BY_NODE),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1"}, f"local-{NODE}", BY_NODE),
        ({"MASTER_ADDR": "localhost", "HOSTNAME": "bert-12"}, "local-bert-12", BY_NODE),
        ({"MASTER_ADDR": "gpu7", "HOSTNAME": "gpu8"}, "local-gpu7", f"MASTER_ADDR, {UNNAMED}"),
        (RUN | {"SLURM_JOB_ID": "4711"}, "4711", "SLURM_JOB_ID"),
        # All jobs of an array of LSF have one LSB_JOBID.
        ({"LSB_JOBID": "42", "LSB_BATCH_JID": "42[2]"}, "42[2]", "LSB_BATCH_JID"),
        (IN_KUBERNETES | {"HOSTNAME": "bert-worker-3"}, "bert", BY_POD),
        (POD | {"HOSTNAME": "bert-12"}, "nlp/bert", f"{BY_POD}, {IN_POD}"),
        (POD | {"HOSTNAME": "gpu-7", "POD_NAME": "bert-0"}, "nlp/bert", f"{BY_NAME}, {IN_POD}"),
        (POD | RUN, "nlp/run", f"TORCHELASTIC_RUN_ID, {IN_POD}"),
        (POD | MINE | {"SLURM_JOB_ID": "4711"}, "mine", "RANKSKEW_JOB_ID"),
        (RUN | {"POD_NAMESPACE": "nlp"}, "run", "TORCHELASTIC_RUN_ID"),
    ],
)
def test_job_is_named_by_the_first_who_did(
    environment: dict[str, str], expected: str, source: str
) -> None:
    """The user's name wins, then the scheduler's, then the launcher's; `check` says whose it is."""
    assert job_id(environment) == job_id(kept(environment)) == expected
    assert identity.job_id_source(environment) == source


def test_namespace_is_read_where_the_pod_does_not_pass_it_on(tmp_path: Path) -> None:
    """Jobs of one name in two namespaces are two, without a line in their manifests."""
    pod = IN_KUBERNETES | RUN
    file = tmp_path / "namespace"
    assert job_id(with_namespace(pod, file)) == "run"
    file.symlink_to("data")  # As Kubernetes mounts it.
    (tmp_path / "data").write_text("vision\n")

    assert job_id(with_namespace(pod, file)) == "vision/run"
    assert job_id(with_namespace(pod | POD, file)) == "nlp/run"
    assert job_id(with_namespace(RUN, file)) == "run"


TASK = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
TASK["SLURM_STEP_ID"] = "0"
TASK_PER_NODE = TASK | {"SLURM_NNODES": "2"}
TASKS_ON_NODE = TASK | {"SLURM_NNODES": "1", "SLURM_LOCALID": "1"}
PMIX = {"PMIX_RANK": "5", "PMIX_NAMESPACE": "prterun-gpu7-88@1"}
MPI = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}

Set = Callable[..., None]


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Set what torch's process group says; without arguments, that there is none."""

    def set_group(*place: int) -> None:
        monkeypatch.setattr(process_group, "rank_and_world_size", lambda: place or None)

    set_group()
    return set_group


Place = tuple[int, int]


@pytest.mark.parametrize(
    ("environment", "at_once", "after_a_step", "formed", "in_the_group"),
    [
        # The leading node names an unnamed job; the script may have set it itself.
        ({}, None, (0, 1), (5, 8), (5, 8, "", "local-gpu7")),
        (RANK_2_OF_4, (2, 4), (2, 4), (5, 8), (5, 8, "2", "j")),
        # Where each rank has a group of its own, all would be rank 0.
        (RANK_2_OF_4, (2, 4), (2, 4), (0, 1), (2, 4, "2", "j")),
        (TASKS_ON_NODE, (1, 2), (1, 2), (1, 2), (1, 2, "1", "7")),
        # Both ranks of a node's only task would be its local rank 0.
        (TASK_PER_NODE, None, (1, 2), (5, 8), (5, 8, "", "7")),
        ({"RANK": "1", "WORLD_SIZE": "2"}, None, (1, 2), (1, 2), (1, 2, "", "local-gpu7")),
        ({"LOCAL_RANK": "1"}, None, (0, 1), (1, 2), (1, 2, "1", "local-gpu7")),
        (MPI, (3, 4), (3, 4), (3, 4), (3, 4, "", "local-gpu7")),
        # prterun tells the rank and no size: who the rank is is known once there is a group.
        (PMIX, None, (0, 1), (5, 8), (5, 8, "", "prterun-gpu7-88@1")),
    ],
)
def test_launcher_is_believed_until_there_is_a_process_group(
    group: Set,
    environment: dict[str, str],
    at_once: Place | None,
    after_a_step: Place,
    formed: Place,
    in_the_group: tuple[int, int, str, str],
) -> None:
    """At once if it started this process; otherwise that may start the ranks itself.

    The group's rank and size are the job's, whatever the launcher counted; also once it is gone.
    """
    for has_stepped, place in ((lambda: False, at_once), (lambda: True, after_a_step)):
        me = OwnRank(environment, {}, has_stepped).who()
        assert (me and (me.rank, me.world_size)) == place
    variables = dict(environment)
    mine = OwnRank(variables, {}, lambda: False)
    mine.who()
    variables["MASTER_ADDR"] = "gpu7"
    for now in (formed, ()):
        group(*now)
        me = mine.who()
        assert me is not None
        assert (me.rank, me.world_size, me.local_rank, me.job_id) == in_the_group


def test_child_is_not_who_its_parent_is(group: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    """It inherits its parent's variables; a process group of its own makes it a rank."""
    monkeypatch.setattr(children, "is_child", lambda: True)
    monkeypatch.setattr(children, "index", lambda: 3)
    child = OwnRank(RANK_2_OF_4, {}, lambda: True)
    assert child.who() is None
    group(7, 8)
    me = child.who()

    assert me is not None
    assert (me.rank, me.local_rank) == (7, "3")


def test_age_of_the_process_is_read_from_linux(tmp_path: Path) -> None:
    """Parentheses and blanks in its name do not shift the fields; without Linux it is unknown."""
    stat = tmp_path / "stat"
    assert process_age_seconds(stat) is None
    stat.write_text("42 (python) S 1")
    assert process_age_seconds(stat) is None
    began = time.clock_gettime(time.CLOCK_BOOTTIME) - 5.0
    ticks = round(began * os.sysconf("SC_CLK_TCK"))
    stat.write_text(f"42 (a) b (c)) {' '.join(['S', *['7'] * 18, str(ticks), '0'])}")

    assert (process_age_seconds(stat) or 0) >= 4.98
    assert 0 < (process_age_seconds() or 0) < 86_400


UNIX = 1_700_000_000.0


# An event: when it began by our clock, and its duration.
Told = tuple[str, float, float | None]


class Process:
    """A process that a test leads through its life; it began *age* before its probe."""

    def __init__(self, age: float | None = 4.0) -> None:
        self.now = 100.0
        self.life = Lifecycle(lambda: self.now, age=lambda: age)
        self._spent = [0] * len(STAGES)
        self.stage: int | None = DATA
        self._elapsed = 0.0
        self.events = LifecycleEvents(self.life, lambda: self.now, lambda: UNIX + self.now)

    def goes_on(self, seconds: float, stage: int | None = None) -> None:
        """Spend *seconds*, in *stage* if it is given."""
        self.now += seconds
        if stage is None:
            self._elapsed += seconds
        else:
            self._spent[stage] += round(seconds * 1e9)
            self._elapsed = 0.0

    def enters(self, stage: int) -> None:
        if self.stage in (CHECKPOINT, EVAL):
            self._spent[self.stage] += round(self._elapsed * 1e9)
        self.stage, self._elapsed = stage, 0.0

    def told(self) -> list[Told]:
        """Return the events as a look tells them: name, seconds of our clock, duration."""
        return [
            (
                event["event"],
                round(event["began_timestamp_seconds"] - UNIX, 3),
                event["seconds"] and round(event["seconds"], 3),
            )
            for event in self.events.look(self.stage, self._spent, self._elapsed)
        ]

    def looks(self, seconds: int) -> None:
        """Look once in each of the next *seconds*."""
        for _ in range(seconds):
            self.goes_on(1)
            self.told()


def test_each_event_of_a_life_is_told() -> None:
    """With its beginning, and its duration once it is over; a moment when it has come.

    A second process group, or a step noted again, moves nothing.
    """
    process = Process()
    life = process.life
    assert process.told() == [("init", 96.0, None)]
    life.rendezvous_begins()
    process.goes_on(10)
    assert process.told() == [("init", 96.0, 4.0), ("rendezvous", 100.0, None)]
    life.rendezvous_ended()
    process.goes_on(100)
    life.first_step_done()
    process.goes_on(1_000)
    life.end()
    for _ in range(2):
        assert process.told()[1:] == [
            ("rendezvous", 100.0, 10.0),
            ("first_step", 110.0, 100.0),
            ("end", 210.0, 1_000.0),
        ]
        process.goes_on(50)
        for again in (life.rendezvous_begins, life.rendezvous_ended, life.first_step_done):
            again()


def test_rendezvous_that_failed_is_forgotten() -> None:
    """A rank alone has none; where the process's start is unknown, there is no init either."""
    process, alone = Process(), Process(age=None)
    process.told()
    for seconds in (60, 2):
        process.life.rendezvous_begins()
        process.goes_on(seconds)
    process.life.rendezvous_ended()
    alone.goes_on(8)
    alone.life.first_step_done()

    assert process.told() == [("init", 96.0, 64.0), ("rendezvous", 160.0, 2.0)]
    assert alone.told() == [("first_step", 100.0, 8.0)]


def test_checkpoint_is_told_while_it_lasts() -> None:
    """Its beginning is exact, and its duration is the time in the stage.

    Files written one after the other, with little between them, are one checkpoint. One right
    before the end is told with its duration, for there is no later look.
    """
    process = Process()
    process.told()
    process.enters(CHECKPOINT)
    process.looks(3)
    assert process.told()[1:] == [("checkpoint", 100.0, None)]
    process.goes_on(0.5)
    process.enters(DATA)
    process.looks(2)
    assert process.told()[1:] == [("checkpoint", 100.0, 3.5)]

    process = Process()
    process.told()
    for _ in range(4):
        process.goes_on(0.6, CHECKPOINT)
        process.goes_on(0.2)
        process.told()
    process.looks(2)
    assert process.told()[1:] == [("checkpoint", 100.2, 2.4)]

    process = Process()
    process.life.first_step_done()
    process.told()
    process.goes_on(2, CHECKPOINT)
    process.life.end()
    process.stage = None
    assert ("checkpoint", 100.0, 2.0) in process.told()


def test_evaluation_in_every_step_is_one_event_a_minute() -> None:
    """A snapshot stays small: the last events are kept, and their numbers show what was missed."""
    process = Process()
    process.told()
    for _ in range(20):
        process.goes_on(0.5, EVAL)
        process.looks(5)
    told = process.told()[1:]
    assert [name for name, _, _ in told] == ["evaluation", "evaluation"]
    assert told[1][1] - told[0][1] >= QUIET_SECONDS

    for _ in range(MOST_EVENTS):
        process.goes_on(1, CHECKPOINT)
        process.looks(int(QUIET_SECONDS) + 1)
    numbers = [event["number"] for event in process.events.look(DATA, process._spent, 0.0)]
    assert numbers == list(range(4, MOST_EVENTS + 4))


compiled = pytest.mark.skipif(new_tape is PythonTape, reason="only where a compiler built it")


class TakesTime:
    """Takes 20 ms while it is collected."""

    def __init__(self) -> None:
        self.me = self  # Only the collector frees it.

    def __del__(self) -> None:
        time.sleep(0.02)


@compiled
def test_a_collection_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes while the collector runs is added up, and nothing else; nor after `undo`.

    Without a compiler there is no reading: a callback in Python would take the user's signals.
    """
    pauses, before = GarbagePauses(), list(gc.callbacks)
    patches = pauses.attach()
    TakesTime()
    began = time.perf_counter()
    gc.collect()
    took = time.perf_counter() - began
    time.sleep(0.05)
    patches.undo()
    TakesTime()
    gc.collect()

    assert 0.02 <= (pauses.seconds() or 0) <= took
    assert gc.callbacks == before
    monkeypatch.setattr(garbage, "_tape", None)
    pauses = GarbagePauses()
    pauses.attach()
    assert gc.callbacks == before
    assert pauses.seconds() is None


class Terminated(BaseException):
    """What a handler raises, like SystemExit."""


def test_signal_during_a_collection_reaches_the_user() -> None:
    """Most of the signals that arrive at a bad moment do so there: it may take a second."""

    def handler(_signal: int, _frame: FrameType | None) -> None:
        raise Terminated

    # Python drops what is raised in a callback, and other tests' packages may have left one.
    others = gc.callbacks[:]
    gc.callbacks.clear()
    gc.freeze()
    patches, raised = GarbagePauses().attach(), 0
    heap = [[number] for number in range(400_000)]
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(5):
            signal.setitimer(signal.ITIMER_REAL, 0.004)
            try:
                gc.collect()
                time.sleep(0.1)
            except Terminated:
                raised += 1
    finally:
        signal.signal(signal.SIGALRM, before)
        patches.undo()
        gc.callbacks[:] = others
        gc.unfreeze()

    assert raised == 5
    assert len(heap) == 400_000
