"""The probe: what its snapshots say, and when it says nothing; the groups whose steps it joins."""

import gc
import json
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rank_probe.guest.guard import failures
from rank_probe.join.join import GroupToJoin, Join
from rank_probe.join.store import PlaceInJob
from rank_probe.lines import sampling
from rank_probe.measure import events
from rank_probe.measure.tape import PythonTape, fetching, new_tape
from rank_probe.probe import Probe
from rank_probe.report import report
from rank_probe.torch_hooks import collectives, parallel, private, process_group, store
from rank_probe.wire.snapshot import RANK_INFO_LABELS, RUNTIME_INFO_LABELS
from rank_probe.wire.stages import DATA
from tests.exporter.running import wait_until
from tests.exporter.snapshots import verdict
from tests.rank_probe.fakes import RANK_2_OF_4, FakeDevice, probe_of_rank_2, told

TRAINED = (events.ENTER | DATA, events.LEAVE, events.STEP)


def step(probe: Probe, *codes: int) -> None:
    for code in codes:
        probe.timeline.tape.note(code)


def test_rank_is_named_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """By nobody at first, by the process group, also once it is gone; alone, after a step."""
    probe = Probe(automatic=True, environment={"MASTER_ADDR": "gpu7"})
    assert probe.snapshot() is None
    monkeypatch.setattr(process_group, "rank_and_world_size", lambda: (3, 8))
    probe._look_around()
    monkeypatch.setattr(process_group, "rank_and_world_size", lambda: None)
    snapshot = told(probe)
    assert (snapshot.rank, snapshot.world_size, snapshot.job_id) == (3, 8, "local-gpu7")
    # Peers may come after the first backward, which found none.
    assert not probe.timeline.state.has_peers
    monkeypatch.setattr(process_group, "has_peers", lambda: True)
    told(probe)
    assert probe.timeline.state.has_peers

    alone = Probe(automatic=False, environment={})
    step(alone, events.STEP)
    assert (told(alone).rank, told(alone).world_size) == (0, 1)


def test_rank_is_seen_from_its_start_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it begins: nothing counted, a heartbeat, the stage that it is in, and hangs in.

    It travels as JSON, with labels of the closed set: what the exporter would refuse is never sent.
    Then its stages, without those that took no time, its work, collections and first step.
    """
    probe = probe_of_rank_2()
    snapshot = told(probe)
    body = json.loads(snapshot.to_json())
    assert (snapshot.steps, snapshot.stage_seconds, snapshot.stage) == (0, {}, "other")
    assert snapshot.last_step_timestamp_seconds is None
    assert snapshot.heartbeat_timestamp_seconds >= snapshot.started_timestamp_seconds
    # The sequence orders snapshots that arrive late or twice.
    assert [told(probe).sequence for _ in range(2)] == [2, 3]
    assert (body["schema"], body["rank"], body["job_id"]) == (1, 2, "j")
    assert set(body["rank_info"]) <= set(RANK_INFO_LABELS)
    assert set(body["runtime_info"]) <= set(RUNTIME_INFO_LABELS)

    probe.attach()
    probe.work.add(samples=4, tokens=64, padding_tokens=16)
    step(probe, events.ENTER | DATA, events.LEAVE, events.WAIT, events.RELEASED, events.STEP)
    gc.collect()
    snapshot = told(probe)
    probe.detach()
    seconds = snapshot.stage_seconds
    assert set(seconds) == {"data", "sync", "other"}
    assert snapshot.busy_seconds == pytest.approx(seconds["data"] + seconds["other"])
    assert (snapshot.samples, snapshot.tokens, snapshot.padding_tokens) == (4, 64, 16)
    assert new_tape is PythonTape or (snapshot.gc_pause_seconds or 0) > 0
    assert "first_step" in {each["event"] for each in snapshot.lifecycle_events}
    assert (snapshot.cuda_memory_allocated_bytes, snapshot.stage_host_seconds) == (None, {})

    # What this torch lacks is a sentence, and no error.
    assert b"limitations" not in snapshot.to_json()
    monkeypatch.setattr(private, "limitations", {})
    private.find(torch, "of.no.release", "A wait is not timed.")
    step(probe, events.ENTER | DATA)
    probe.timeline.steps.fold()
    later = time.perf_counter_ns() + 7_000_000_000
    monkeypatch.setattr(probe.timeline.steps, "_now", lambda: later)
    snapshot = told(probe)
    assert (snapshot.stage, snapshot.stage_seconds) == ("data", seconds)
    assert 7 <= snapshot.stage_elapsed_seconds < 70
    probe._look_around()
    assert (told(probe).limitations, told(probe).probe_errors) == (["A wait is not timed."], 0)


def test_place_that_the_user_gives_names_the_peers() -> None:
    """Ranks of one pipeline stage are one group, unless it has a name; arguments win over all."""
    probe = probe_of_rank_2()
    assert "dp" not in told(probe).rank_info
    probe.annotate(dp=0, tp=None, pp=1, peer_group=None)
    snapshot = told(probe)
    assert snapshot.peer_group == "pp1"
    coordinates = {key: snapshot.rank_info.get(key) for key in ("dp", "tp", "pp")}
    assert coordinates == {"dp": "0", "tp": None, "pp": "1"}

    probe = probe_of_rank_2(RANKSKEW_PEER_GROUP="mine")
    for peer_group, expected in ((None, "mine"), ("yours", "yours")):
        probe.annotate(dp=None, tp=None, pp=1, peer_group=peer_group)
        assert told(probe).peer_group == expected
    mine = told(Probe(automatic=True, job_id="mine", peer_group="p", environment=RANK_2_OF_4))
    assert (mine.job_id, mine.peer_group) == ("mine", "p")


def test_device_time_is_told_beside_the_hosts(device: FakeDevice) -> None:
    """Where CUDA is in use, from the second step on the stages are the device's."""
    probe = probe_of_rank_2()
    probe.annotate(dp=None, tp=None, pp=1, peer_group=None)
    for code in 5 * TRAINED:
        probe.timeline.tape.note(code)
        if code == TRAINED[0]:
            device.launch(7_000_000_000)  # more than the host takes, held up as it may be
    device.item()
    probe.finish()
    snapshot = told(probe)

    assert snapshot.rank_info["clock"] == "device"
    assert snapshot.peer_group == "pp1 H100"
    assert snapshot.steps == 4
    assert snapshot.stage_seconds["data"] == pytest.approx(4 * 7)
    assert snapshot.stage_host_seconds["data"] < 7
    assert snapshot.cuda_alloc_retries == 4


@pytest.mark.parametrize(("kernel_seconds", "stage"), [(60, "sync"), (0, "other")])
def test_rank_that_stands_is_where_its_device_stands(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch, kernel_seconds: int, stage: str
) -> None:
    """NCCL makes the stream wait: the thread, which asks for the loss, is not in a wait itself.

    If the device has done all, its thread is what others wait for.
    """
    probe = probe_of_rank_2()
    step(probe, *3 * TRAINED)
    step(probe, events.WAIT)
    device.launch(kernel_seconds * 1_000_000_000)  # the collective, which its peers do not join
    step(probe, events.RELEASED)
    for seconds, expected in ((60.0, "other"), (0.0, stage)):
        monkeypatch.setattr(report, "STANDS_SECONDS", seconds)
        assert told(probe).stage == expected
    assert failures.count == 0


def test_part_that_does_not_fit_this_torch_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where one module cannot attach, or only in part, the others do; each failure is counted."""
    monkeypatch.setattr(parallel, "attach", lambda _: 1 / 0)
    monkeypatch.setattr(collectives, "_in_cpp", lambda *_: 1 / 0)
    probe = probe_of_rank_2(automatic=True)
    before, backward, wait = failures.count, torch.autograd.backward, vars(dist.Work)["wait"]
    probe.attach()
    is_patched = torch.autograd.backward is not backward, vars(dist.Work)["wait"] is not wait
    probe.detach()

    assert is_patched == (True, False)
    assert torch.autograd.backward is backward
    assert failures.count == before + 2


def test_end_is_told_whatever_others_did_to_what_the_probe_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What they wrapped around it stays; an undo that fails does not make a dead rank of it."""
    probe = probe_of_rank_2(automatic=True)
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    before, listeners = failures.count, gc.callbacks.copy()
    probe.attach()
    ours = torch.autograd.backward
    torch.autograd.backward = theirs = lambda *args, **kwargs: ours(*args, **kwargs)
    gc.callbacks[:] = listeners
    probe._patches[0].on_undo(lambda: 1 / 0)
    probe.finish()
    torch.ones(1, requires_grad=True).sum().backward()

    assert torch.autograd.backward is theirs
    assert told(probe).finished
    assert failures.count == before + 1


def test_batches_are_counted_as_they_are_after_timing_began_anew() -> None:
    """Those that wait to be trained with then are left out, and one that came while it was off."""
    probe = probe_of_rank_2()
    fetch = fetching(probe.timeline.tape, next, probe.work.measure)
    batches = iter([*[torch.ones(100, 1)] * 3, *[torch.ones(4, 1)] * 3])
    fetch(batches)
    fetch(batches)  # It reads ahead.
    probe.work.measure(next(batches))  # Its FETCHED is not noted any more.
    for level in ("off", "stages"):
        probe._after_push({"level": level})
    trained = (events.BACKWARD_BEGINS, events.BACKWARD_ENDED, events.STEP)
    step(probe, *trained)
    for batch in range(3):
        fetch(batches)
        step(probe, *trained)
        assert told(probe).samples == 4 * (batch + 1)


# A loop's step as it is found: a batch, a backward, an optimizer.
FOUND = (
    *(events.FETCH, events.FETCHED, events.BACKWARD_BEGINS, events.BACKWARD_ENDED),
    *(events.OPTIMIZER_BEGINS, events.OPTIMIZER_ENDED),
)


class Torch:
    """What torch says of its process group, and what the join was told to begin with."""

    def __init__(self) -> None:
        self.group: tuple[int, int] | None = None
        self.begun: list[tuple[PlaceInJob, int]] = []
        self.facts: Mapping[str, str] = {}

    def form(self, probe: Probe, rank: int, ranks: int) -> None:
        self.group = (rank, ranks)
        probe._groups.formed()

    def destroy(self, probe: Probe) -> None:
        self.group = None
        probe._groups.gone()

    def begin(self, _: Join, group: GroupToJoin) -> None:
        self.begun.append((group.place, group.steps_before))
        self.facts = group.facts()


@pytest.fixture
def torch_says(joinable: None, monkeypatch: pytest.MonkeyPatch) -> Torch:
    says = Torch()
    monkeypatch.setattr(process_group, "rank_and_world_size", lambda: says.group)
    monkeypatch.setattr(Join, "begin", lambda *told: says.begin(*told))
    return says


def numbers(probe: Probe, codes: tuple[int, ...], steps: int) -> list[int]:
    """Return the numbers of *steps* more steps, each as the loop notes it with *codes*."""
    kept = probe.timeline.steps.keep()
    step(probe, *codes * steps)
    probe.timeline.finish()
    return [vector.step for vector in kept.take()]


@pytest.mark.parametrize(("automatic", "codes"), [(True, FOUND), (False, TRAINED)])
@pytest.mark.parametrize("interrupted", [0, 1, 2])
def test_steps_of_a_group_are_counted_alike_by_survivors_and_newcomers(
    torch_says: Torch, automatic: bool, codes: tuple[int, ...], interrupted: int
) -> None:
    """Wherever in a step the group before broke: what was begun with it is none of the next."""
    old, new = (probe_of_rank_2(automatic=automatic) for _ in range(2))
    torch_says.form(old, 2, 4)
    step(old, *codes * 7, *codes[:interrupted])
    torch_says.destroy(old)
    for probe in (old, new):
        torch_says.form(probe, 1, 3)
    before = torch_says.begun[-1][1]

    assert before == 7
    assert [each - before for each in numbers(old, codes, 5)] == numbers(new, codes, 5)
    assert torch_says.begun == [(PlaceInJob(2, 4), 0), (PlaceInJob(1, 3), 7), (PlaceInJob(1, 3), 0)]


def test_first_group_is_joined_after_the_first_step(torch_says: Torch) -> None:
    """Before it, a rank may turn out to train nothing; a later group may come after solo steps.

    A group of one is not joined: it has nobody to compare with.
    """
    probe = probe_of_rank_2()
    torch_says.form(probe, 2, 4)
    assert torch_says.begun == []
    step(probe, *TRAINED)
    assert torch_says.facts["node"] == os.uname().nodename
    torch_says.destroy(probe)
    torch_says.form(probe, 0, 1)
    assert torch_says.begun == [(PlaceInJob(2, 4), 0)]

    alone = probe_of_rank_2()
    torch_says.group = None
    step(alone, *TRAINED, *TRAINED)
    torch_says.form(alone, 1, 2)
    assert torch_says.begun[1:] == [(PlaceInJob(1, 2), 2)]


@pytest.mark.parametrize("is_off", [True, False])
@pytest.mark.usefixtures("joinable")
def test_rank_that_is_off_when_its_group_is_formed_is_not_joined(is_off: bool) -> None:
    """Its steps are not counted from the first one on; one that is on again by then is."""
    probe = probe_of_rank_2()
    probe._groups.formed()
    step(probe, *TRAINED)
    first = probe._parts.join._state.current
    probe._after_push({"level": "off"})
    if not is_off:
        probe._after_push({"level": "stages"})
    probe._groups.formed()
    second = probe._parts.join._state.current
    probe.finish()

    assert first is not None
    assert (second is None) == is_off


def test_forked_helper_may_form_a_group_of_its_own() -> None:
    """Forming a group does not block, even if a thread held a probe lock at the fork."""
    probe = probe_of_rank_2()
    probe.forget_in_child()
    forming = threading.Thread(target=probe._groups.formed, daemon=True)
    with probe.timeline.steps._lock:
        forming.start()
        forming.join(5.0)
        assert not forming.is_alive()


def test_device_does_not_count_what_is_between_two_groups(
    torch_says: Torch, device: FakeDevice
) -> None:
    """The step in progress is dropped there too, and numbers stay those of the host."""
    probe = probe_of_rank_2()
    torch_says.form(probe, 2, 4)
    step(probe, *TRAINED * 6)
    clock = probe._parts.device
    assert clock is not None
    torch_says.destroy(probe)
    device.append(5_000_000_000)
    device.item()
    torch_says.form(probe, 1, 3)
    kept = clock.steps.keep()
    step(probe, *TRAINED * 8)
    probe.finish()
    vectors = [vector for vector in kept.take() if vector.step > torch_says.begun[-1][1]]

    assert [vector.step for vector in vectors][-1] == probe.timeline.steps.totals().steps == 14
    assert max(sum(vector.nanoseconds) for vector in vectors) < 1_000_000_000


def test_rank_says_why_it_cannot_be_compared(
    torch_says: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason in a snapshot is that of the rank's current group."""
    probe = probe_of_rank_2()
    monkeypatch.setattr(store, "obstacle", lambda: "file_store")
    torch_says.form(probe, 2, 4)
    step(probe, *TRAINED)
    assert told(probe).no_join == "file_store"
    monkeypatch.setattr(store, "obstacle", str)
    torch_says.form(probe, 2, 4)
    assert told(probe).no_join == ""
    assert len(torch_says.begun) == 1

    off = probe_of_rank_2(RANK_PROBE_JOIN="0")
    step(off, *TRAINED)
    assert told(off).no_join == "off"


def test_rank_that_is_stuck_reports_its_line_and_tells_the_others_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once it has crossed no boundary for ten seconds, until it does; also while it waits.

    Nor before its first step, which may compile a model. The others hear what its exporter says.
    """
    monkeypatch.setattr(sampling, "INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr(sampling, "LOOK_SECONDS", 0.001)
    for module in ("probe", "judge.standing"):
        monkeypatch.setattr(f"rank_probe.{module}.STANDS_SECONDS", 0.0)
    probe = probe_of_rank_2()
    probe._after_push({"whereabouts": {"node": "gpu-7"}})
    for codes, stage, is_stuck in (
        ((), None, False),
        ((*TRAINED, events.ENTER | DATA), "data", True),
        ((events.LEAVE, events.WAIT), "sync", True),
        ((events.RELEASED, events.ENTER | DATA), "data", True),
    ):
        step(probe, *codes)
        assert told(probe).stage == (stage or "other")
        told(probe)
        assert (probe.stacks._sampling is not None) is is_stuck
        at = probe._parts.whereabouts
        assert (at["node"], at.get("stage"), at.get("steps")) == ("gpu-7", stage, stage and 1)
    wait_until(lambda: bool(told(probe).late_lines and told(probe).thread_states))
    told(probe)
    at = probe._parts.whereabouts
    assert at["line"].startswith(("wait_until (", "told ("))  # Whichever takes longer.
    assert at["state"] == told(probe).thread_states[0]["state"]
    probe.finish()
    assert probe._parts.whereabouts == {"node": "gpu-7"}


def test_late_rank_reports_lines_while_it_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict of the judge, or of the exporter where there is none, starts the sampling.

    Its end, an order and the rank's own end stop it.
    """
    said: list[Any] = [None]
    monkeypatch.setattr(Join, "verdict", property(lambda self: said[0]))
    monkeypatch.setattr(sampling, "INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr(sampling, "LOOK_SECONDS", 0.001)
    probe = probe_of_rank_2()

    def is_sampled() -> bool:
        assert probe.snapshot() is not None
        return probe.stacks._sampling is not None

    assert not is_sampled()
    said[0] = verdict()
    assert is_sampled()
    wait_until(lambda: bool(told(probe).late_lines and told(probe).thread_states))
    assert any(each["place"].startswith("wait_until (") for each in told(probe).late_lines)
    said[0] = verdict(late=())
    assert not is_sampled()
    assert told(probe).late_lines == told(probe).thread_states == []
    said[0] = verdict()
    assert is_sampled()
    for level, expected in (("off", False), ("stages", True)):
        probe._after_push({"level": level})
        assert is_sampled() is expected
    probe.finish()
    wait_until(lambda: "rank_probe_stacks" not in {each.name for each in threading.enumerate()})

    said[0] = None
    probe = probe_of_rank_2()
    for answer in ({"late": "data"}, {}):  # An answer to a push counts until the next one.
        probe._after_push(answer)
        assert told(probe)
        assert (probe.stacks._sampling is not None) is bool(answer)
