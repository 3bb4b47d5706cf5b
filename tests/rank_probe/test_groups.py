"""The probe joins each group from its first common step on, and samples a rank that is late."""

import os
import time
from collections.abc import Mapping
from typing import Any

import pytest

from rank_probe.join.join import GroupToJoin, Join
from rank_probe.join.store import PlaceInJob
from rank_probe.lines import sampling
from rank_probe.measure import events
from rank_probe.probe import Probe
from rank_probe.torch_hooks import process_group, store
from rank_probe.wire.stages import DATA
from tests.exporter.snapshots import verdict
from tests.rank_probe.fakes import FakeDevice, probe_of_rank_2, told

# A loop's step as it is found: a batch, a backward, an optimizer.
FOUND = (
    *(events.FETCH, events.FETCHED, events.BACKWARD_BEGINS, events.BACKWARD_ENDED),
    *(events.OPTIMIZER_BEGINS, events.OPTIMIZER_ENDED),
)
GIVEN = (events.ENTER | DATA, events.LEAVE, events.STEP)


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


def step(probe: Probe, *codes: int) -> None:
    for code in codes:
        probe.timeline.tape.note(code)


def numbers(probe: Probe, codes: tuple[int, ...], steps: int) -> list[int]:
    """Return the numbers of *steps* more steps, each as the loop notes it with *codes*."""
    kept = probe.timeline.steps.keep()
    for _ in range(steps):
        step(probe, *codes)
    probe.timeline.finish()
    return [vector.step for vector in kept.take()]


@pytest.mark.parametrize(("automatic", "codes"), [(True, FOUND), (False, GIVEN)])
@pytest.mark.parametrize("interrupted", [0, 1, 2])
def test_steps_of_a_group_are_counted_alike_by_survivors_and_newcomers(
    torch_says: Torch, automatic: bool, codes: tuple[int, ...], interrupted: int
) -> None:
    """Wherever in a step the group before broke: what was begun with it is none of the next."""
    old, new = (probe_of_rank_2(automatic=automatic) for _ in range(2))
    torch_says.form(old, 2, 4)
    for _ in range(7):
        step(old, *codes)
    step(old, *codes[:interrupted])
    torch_says.destroy(old)
    for probe in (old, new):
        torch_says.form(probe, 1, 3)
    before = torch_says.begun[-1][1]

    assert before == 7
    assert [each - before for each in numbers(old, codes, 5)] == numbers(new, codes, 5)
    assert torch_says.begun == [
        (PlaceInJob(2, 4), 0),
        (PlaceInJob(1, 3), 7),
        (PlaceInJob(1, 3), 0),
    ]


def test_first_group_is_joined_after_the_first_step(torch_says: Torch) -> None:
    """Before it, a rank may turn out to train nothing; a later group may come after solo steps."""
    probe = probe_of_rank_2()
    torch_says.form(probe, 2, 4)
    assert torch_says.begun == []
    step(probe, *GIVEN)
    assert torch_says.begun == [(PlaceInJob(2, 4), 0)]
    assert torch_says.facts["node"] == os.uname().nodename

    alone = probe_of_rank_2()
    torch_says.group = None
    step(alone, *GIVEN, *GIVEN)
    torch_says.form(alone, 1, 2)
    assert torch_says.begun[1:] == [(PlaceInJob(1, 2), 2)]


def test_group_of_one_is_not_joined(torch_says: Torch) -> None:
    """It has nobody to compare with."""
    probe = probe_of_rank_2()
    torch_says.form(probe, 2, 4)
    step(probe, *GIVEN)
    torch_says.destroy(probe)
    torch_says.form(probe, 0, 1)

    assert torch_says.begun == [(PlaceInJob(2, 4), 0)]


@pytest.mark.parametrize("is_off", [True, False])
@pytest.mark.usefixtures("joinable")
def test_rank_that_is_off_when_its_group_is_formed_is_not_joined(is_off: bool) -> None:
    """Its steps are not counted from the first one on; one that is on again by then is."""
    probe = probe_of_rank_2()
    probe._groups.formed()
    step(probe, *GIVEN)
    first = probe._parts.join._state.current
    probe._after_push({"level": "off"})
    if not is_off:
        probe._after_push({"level": "stages"})
    probe._groups.formed()
    second = probe._parts.join._state.current
    probe.finish()

    assert first is not None
    assert (second is None) == is_off


def test_device_does_not_count_what_is_between_two_groups(
    torch_says: Torch, device: FakeDevice
) -> None:
    """The step in progress is dropped there too, and numbers stay those of the host."""
    probe = probe_of_rank_2()
    torch_says.form(probe, 2, 4)
    for _ in range(6):
        step(probe, *GIVEN)
    clock = probe._parts.device
    assert clock is not None
    torch_says.destroy(probe)
    device.append(5_000_000_000)
    device.item()
    torch_says.form(probe, 1, 3)
    kept = clock.steps.keep()
    for _ in range(8):
        step(probe, *GIVEN)
    probe.finish()
    vectors = [vector for vector in kept.take() if vector.step > torch_says.begun[-1][1]]

    assert [vector.step for vector in vectors][-1] == probe.timeline.steps.totals().steps == 14
    assert max(sum(vector.nanoseconds) for vector in vectors) < 1_000_000_000


def test_rank_says_why_it_cannot_be_compared(
    torch_says: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the group that it is in now."""
    probe = probe_of_rank_2()
    monkeypatch.setattr(store, "obstacle", lambda: "file_store")
    torch_says.form(probe, 2, 4)
    step(probe, *GIVEN)
    assert told(probe).no_join == "file_store"
    monkeypatch.setattr(store, "obstacle", str)
    torch_says.form(probe, 2, 4)
    assert told(probe).no_join == ""
    assert len(torch_says.begun) == 1

    off = probe_of_rank_2(RANK_PROBE_JOIN="0")
    step(off, *GIVEN)
    assert told(off).no_join == "off"


def test_number_that_was_given_up_is_told_once(torch_says: Torch) -> None:
    """Then the other one, with the age of its group."""
    probe = probe_of_rank_2()
    torch_says.form(probe, 2, 4)
    step(probe, *GIVEN)
    before = told(probe)
    torch_says.form(probe, 1, 3)
    said = [told(probe) for _ in range(3)]

    assert before.group_formed_timestamp_seconds is None
    assert [(each.rank, each.world_size, each.finished) for each in said] == [
        (2, 4, True),
        (1, 3, False),
        (1, 3, False),
    ]
    assert said[0].group_formed_timestamp_seconds is None
    assert said[1].group_formed_timestamp_seconds is not None


def test_blocks_of_all_ranks_end_at_the_same_step_of_the_group(torch_says: Torch) -> None:
    """Where no join compares them, an exporter does; each rank may have counted steps before."""
    old, new = probe_of_rank_2(), probe_of_rank_2()
    torch_says.form(old, 2, 4)
    step(old, *GIVEN * 7)
    for probe in (old, new):
        torch_says.form(probe, 1, 3)
        told(probe)
    ends = []
    for probe in (old, new):
        for number in range(1, 40):
            step(probe, *GIVEN)
            if told(probe).block_steps:
                ends.append(number)
                break

    assert ends == [16, 16]


def test_late_rank_reports_lines_while_it_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge's verdict starts the sampling; its end, an order and the rank's own end stop it."""
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
    lines: list[dict[str, Any]] = []
    while not lines:  # The timeout of the test ends it.
        time.sleep(0.05)
        lines = told(probe).late_lines
    assert lines[0]["place"].startswith("test_late_rank_reports_lines_while_it_is_late (")
    while not (states := told(probe).thread_states):
        time.sleep(0.05)
    assert states[0]["state"] == "sleep"
    said[0] = verdict(late=())
    assert not is_sampled()
    assert told(probe).late_lines == told(probe).thread_states == []
    said[0] = verdict()
    assert is_sampled()
    probe._after_push({"level": "off"})
    assert not is_sampled()
    probe._after_push({"level": "stages"})
    assert is_sampled()
    probe.finish()
    taken = probe.stacks.samples
    time.sleep(0.02)
    assert probe.stacks.samples <= taken + 1  # The one that was being taken.


def test_exporter_tells_a_rank_without_a_judge() -> None:
    """The answer to a push counts until the next one."""
    probe = probe_of_rank_2()
    for answer in ({"late": "data"}, {}):
        probe._after_push(answer)
        probe.snapshot()
        assert (probe.stacks._sampling is not None) is bool(answer)
