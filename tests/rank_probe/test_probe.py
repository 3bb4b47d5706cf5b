"""Tests of the probe: what its snapshots say, and when it says nothing."""

import json

import pytest

from rank_probe import runtime
from rank_probe.probe import Probe
from rank_probe.snapshot import RANK_INFO_LABELS, RUNTIME_INFO_LABELS
from rank_probe.stages import DATA

RANK_2_OF_4 = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "RANKSKEW_JOB_ID": "j"}


def test_nobody_speaks_for_an_unknown_rank() -> None:
    """Without a launcher, and before torch.distributed knows, there is no snapshot."""
    assert Probe(automatic=True, environment={}).snapshot() is None


def test_torch_distributed_names_the_rank_where_no_launcher_did() -> None:
    """Once the process group is up the rank is known from it."""
    probe = Probe(automatic=True, environment={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "rank_and_world_size", lambda: (3, 8))
        snapshot = probe.snapshot()

    assert snapshot is not None
    assert (snapshot.rank, snapshot.world_size, snapshot.job_id) == (3, 8, "local")


def test_training_without_ranks_is_a_job_of_one() -> None:
    """A single process that has finished a step is rank 0 of 1."""
    probe = Probe(automatic=False, environment={})
    probe.timeline.complete_step()
    snapshot = probe.snapshot()

    assert snapshot is not None
    assert (snapshot.rank, snapshot.world_size) == (0, 1)


def test_rank_that_has_not_begun_already_beats() -> None:
    """From its start a rank is seen: nothing counted, a heartbeat, the stage that it is in."""
    snapshot = Probe(automatic=True, environment=RANK_2_OF_4).snapshot()

    assert snapshot is not None
    assert (snapshot.steps, snapshot.stage_seconds, snapshot.stage) == (0, {}, "other")
    assert snapshot.last_step_timestamp_seconds is None
    assert snapshot.sync_floor_seconds is None
    assert snapshot.heartbeat_timestamp_seconds >= snapshot.started_timestamp_seconds


def test_snapshot_tells_where_a_rank_hangs() -> None:
    """The stage of the moment and the time in it grow while nothing is committed."""
    probe = Probe(automatic=True, environment=RANK_2_OF_4)
    probe.timeline.enter(DATA)
    probe.timeline.clock.tape[-1] -= 7_000_000_000
    snapshot = probe.snapshot()

    assert snapshot is not None
    assert snapshot.stage == "data"
    assert snapshot.stage_elapsed_seconds == pytest.approx(7, abs=0.5)
    assert snapshot.stage_seconds == {}


def test_only_stages_that_occurred_are_told() -> None:
    """A stage without time is absent, not zero."""
    probe = Probe(automatic=False, environment=RANK_2_OF_4)
    probe.timeline.enter(DATA)
    probe.timeline.leave()
    probe.timeline.enter_wait()
    probe.timeline.leave_wait()
    probe.timeline.complete_step()
    snapshot = probe.snapshot()

    assert snapshot is not None
    assert set(snapshot.stage_seconds) == {"data", "sync", "other"}
    assert snapshot.stage_seconds["sync"] > 0
    assert snapshot.busy_seconds == pytest.approx(
        snapshot.stage_seconds["data"] + snapshot.stage_seconds["other"]
    )


def test_each_snapshot_is_newer_than_the_last() -> None:
    """The sequence orders snapshots that arrive late or twice."""
    probe = Probe(automatic=True, environment=RANK_2_OF_4)
    sequences = [snapshot.sequence for _ in range(3) if (snapshot := probe.snapshot())]

    assert sequences == [1, 2, 3]


def test_info_labels_are_of_the_closed_set() -> None:
    """What the exporter would refuse is never sent."""
    snapshot = Probe(automatic=True, environment=RANK_2_OF_4).snapshot()

    assert snapshot is not None
    assert set(snapshot.rank_info) <= set(RANK_INFO_LABELS)
    assert set(snapshot.runtime_info) <= set(RUNTIME_INFO_LABELS)


def test_snapshot_travels_as_json() -> None:
    """The body of a push is plain JSON with the schema's number."""
    snapshot = Probe(automatic=True, environment=RANK_2_OF_4).snapshot()
    assert snapshot is not None
    body = json.loads(snapshot.to_json())

    assert body["schema"] == 1
    assert body["rank"] == 2
    assert body["job_id"] == "j"


def test_arguments_win_over_the_environment() -> None:
    """A job named in the code is not renamed by the launcher."""
    probe = Probe(automatic=True, job_id="mine", peer_group="pp1", environment=RANK_2_OF_4)
    snapshot = probe.snapshot()

    assert snapshot is not None
    assert (snapshot.job_id, snapshot.peer_group) == ("mine", "pp1")
