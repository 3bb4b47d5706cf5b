"""The rank store keeps the newest state of each rank, within its limits, as long as it is news."""

import os
import subprocess
import time
from collections.abc import Iterable
from typing import Any

import pytest

from exporter.listeners.peer import Peer
from exporter.ranks.limits import NoRoom, RankLimits
from exporter.ranks.store import SILENT_SECONDS, Forbidden, RankStore, Superseded
from tests.exporter.clock import Clock
from tests.exporter.snapshots import snapshot


@pytest.fixture
def clock() -> Clock:
    return Clock()


def held(store: RankStore) -> list[tuple[str, int]]:
    return [(rank.snapshot.job_id, rank.snapshot.rank) for rank in store.ranks()]


def test_empty_store_holds_nobody(clock: Clock) -> None:
    """A node without training has no rank."""
    assert RankStore(clock=clock).ranks() == []


def test_newest_snapshot_replaces_the_one_before(clock: Clock) -> None:
    """A rank has one state, the latest, with the time it came."""
    store = RankStore(clock=clock)
    assert store.put(snapshot(sequence=1, steps=10))
    clock.seconds += 7
    assert store.put(snapshot(sequence=2, steps=20))

    (rank,) = store.ranks()
    assert rank.snapshot.steps == 20
    assert rank.received_seconds == 5_007.0


@pytest.mark.parametrize("sequence", [1, 2])
def test_repeated_or_reordered_push_is_ignored(clock: Clock, sequence: int) -> None:
    """A snapshot that is not newer changes nothing, and is not an error."""
    store = RankStore(clock=clock)
    store.put(snapshot(sequence=2, steps=20))

    assert not store.put(snapshot(sequence=sequence, steps=10))
    assert store.ranks()[0].snapshot.steps == 20


@pytest.mark.parametrize(
    "older",
    [
        {"attempt": 0, "started_timestamp_seconds": 1_000.0},
        {"attempt": 1, "started_timestamp_seconds": 999.0},
    ],
)
def test_older_process_cannot_take_its_rank_back(clock: Clock, older: dict[str, float]) -> None:
    """A process that was replaced is told so, whatever its sequence number is."""
    store = RankStore(clock=clock)
    store.put(snapshot(attempt=1, started_timestamp_seconds=1_000.0, sequence=1))

    with pytest.raises(Superseded, match="newer process already reports rank 0 of job 'llama'"):
        store.put(snapshot(sequence=99, **older))
    assert store.ranks()[0].snapshot.sequence == 1


def test_older_process_stays_out_however_silent_the_newer_one(clock: Clock) -> None:
    """A process that was replaced does not come back when its successor hangs."""
    store = RankStore(clock=clock)
    store.put(snapshot(attempt=1, started_timestamp_seconds=1_000.0))
    clock.seconds += SILENT_SECONDS

    with pytest.raises(Superseded):
        store.put(snapshot(attempt=0, started_timestamp_seconds=900.0))


@pytest.mark.parametrize(
    "newer",
    [
        {"attempt": 2, "started_timestamp_seconds": 900.0},
        {"attempt": 1, "started_timestamp_seconds": 1_001.0},
    ],
)
def test_newer_process_takes_over_at_its_first_push(clock: Clock, newer: dict[str, float]) -> None:
    """A restarted rank is seen at once, although its counters and sequence start over."""
    store = RankStore(clock=clock)
    store.put(snapshot(attempt=1, started_timestamp_seconds=1_000.0, sequence=99))

    assert store.put(snapshot(sequence=1, **newer))
    assert store.ranks()[0].snapshot.sequence == 1


def test_requeued_job_is_not_locked_out_by_its_own_past(clock: Clock) -> None:
    """A later process that counts attempts from 0 again takes over once the old one is silent."""
    store = RankStore(clock=clock)
    store.put(snapshot(attempt=3, started_timestamp_seconds=1_000.0))
    requeued = snapshot(attempt=0, started_timestamp_seconds=2_000.0)
    with pytest.raises(Superseded):
        store.put(requeued)

    clock.seconds += SILENT_SECONDS
    assert store.put(requeued)


def test_requeued_job_follows_a_finished_one_at_once(clock: Clock) -> None:
    """A rank that ended cleanly does not defend its place."""
    store = RankStore(clock=clock)
    store.put(snapshot(attempt=3, started_timestamp_seconds=1_000.0, finished=True))

    assert store.put(snapshot(attempt=0, started_timestamp_seconds=2_000.0))


USER, OTHER = Peer(1000), Peer(1001)
NEWER = {"started_timestamp_seconds": 2_000.0, "attempt": 1}


@pytest.mark.parametrize("other", [OTHER, None, Peer(0), Peer(USER.uid, "a-container")])
def test_rank_belongs_to_whom_first_reported_it(clock: Clock, other: Peer | None) -> None:
    """Not another user, nor root, nor the same user in a container, nor nobody in particular
    can replace it, however new their process is.
    """
    store = RankStore(clock=clock)
    store.put(snapshot(job_id="local"), USER)

    with pytest.raises(
        Forbidden, match="Rank 0 of job 'local' belongs to another user or container"
    ) as refusal:
        store.put(snapshot(job_id="local", sequence=2, **NEWER), other)
    assert str(refusal.value).endswith("(uid 1000); set RANKSKEW_JOB_ID to a unique name.")
    assert store.put(snapshot(job_id="local", sequence=2), USER)
    assert store.put(snapshot(job_id="mine"), other)


def test_owner_may_restart_his_rank(clock: Clock) -> None:
    """For one user the order of his processes decides, as it does over loopback."""
    store = RankStore(clock=clock)
    store.put(snapshot(), USER)

    assert store.put(snapshot(**NEWER), USER)
    with pytest.raises(Superseded):
        store.put(snapshot(sequence=9), USER)


def test_rank_of_nobody_is_not_protected(clock: Clock) -> None:
    """A process without a uid cannot keep a user from his rank by claiming to be the newest."""
    store = RankStore(clock=clock)
    store.put(snapshot(attempt=9, started_timestamp_seconds=1e15))

    assert store.put(snapshot(), USER)
    with pytest.raises(Forbidden):
        store.put(snapshot(attempt=9, started_timestamp_seconds=1e15, sequence=2))
    assert [rank.owner for rank in store.ranks()] == [USER]


@pytest.mark.parametrize("other", [OTHER, None])
def test_rank_that_finished_belongs_to_nobody(clock: Clock, other: Peer | None) -> None:
    """Whoever comes next gets the place at once, even with a process that started earlier."""
    store = RankStore(clock=clock)
    store.put(snapshot(finished=True, **NEWER), USER)

    assert store.put(snapshot(), other)
    assert [rank.owner for rank in store.ranks()] == [other]


@pytest.mark.parametrize(
    ("next_one", "seconds"),
    [(OTHER, 300.1), (None, 300.1), (Peer(USER.uid, "pod"), SILENT_SECONDS)],
)
def test_silent_rank_goes_to_the_next(clock: Clock, next_one: Peer | None, seconds: float) -> None:
    """A restarted pod gets its rank soon; another user only when nobody can wait for it any more.

    A rank that is stuck in native code does not push, and must not lose its place for that.
    """
    store = RankStore(clock=clock)
    store.put(snapshot(**NEWER), USER)
    clock.seconds += seconds - 0.1
    with pytest.raises(Forbidden):
        store.put(snapshot(), next_one)

    clock.seconds += 0.1
    assert store.put(snapshot(), next_one)
    assert [rank.owner for rank in store.ranks()] == [next_one]


def test_stuck_rank_of_a_container_is_not_taken_for_a_dead_one(clock: Clock) -> None:
    """A restarted pod gets its rank once the old process is gone; root in any other does not."""
    store = RankStore(clock=clock)
    store.put(snapshot(), Peer(0, "pod", os.getpid()))
    clock.seconds += 300.0
    with pytest.raises(Forbidden):
        store.put(snapshot(**NEWER), Peer(0, "stranger"))
    store.put(snapshot(sequence=2), Peer(0, "pod", ended_process()))

    clock.seconds += SILENT_SECONDS
    assert store.put(snapshot(**NEWER), Peer(0, "stranger"))


def ended_process() -> int:
    """Return the id of a process that is gone."""
    with subprocess.Popen(["true"]) as process:
        return process.pid


def test_user_who_lost_a_silent_rank_is_told_whose_it_is(clock: Clock) -> None:
    """Who comes back after so long learns why nobody sees the rank."""
    store = RankStore(clock=clock)
    store.put(snapshot(**NEWER), USER)
    clock.seconds += 300.1
    store.put(snapshot(), OTHER)

    with pytest.raises(Forbidden, match="uid 1001"):
        store.put(snapshot(sequence=2, **NEWER), USER)


@pytest.mark.parametrize("other", [OTHER, Peer(0, "pod"), None])
def test_nobody_adds_a_rank_to_anothers_job(clock: Clock, other: Peer | None) -> None:
    """Its verdict and its size would be taken for those of the job, until all of it has ended."""
    store = RankStore(clock=clock)
    store.put(snapshot(rank=0), USER)
    store.put(snapshot(rank=1), USER)
    for changes in ({"rank": 3}, {"rank": 8, "world_size": 9}, {"rank": 3, "finished": True}):
        with pytest.raises(Forbidden, match="Rank 0 of job 'llama' belongs to another user"):
            store.put(snapshot(**changes), other)
    store.put(snapshot(rank=0, sequence=2, finished=True), USER)
    with pytest.raises(Forbidden, match="Rank 1 of job 'llama'"):
        store.put(snapshot(rank=0, sequence=3), other)

    store.put(snapshot(rank=1, sequence=2, finished=True), USER)
    assert store.put(snapshot(rank=0), other)


def test_pods_of_one_job_share_it(clock: Clock) -> None:
    """Each of them has ranks of its own."""
    store = RankStore(clock=clock)
    for rank in range(3):
        assert store.put(snapshot(rank=rank), Peer(0, f"pod-{rank}"))

    with pytest.raises(Forbidden):
        store.put(snapshot(rank=0, sequence=2), Peer(0, "pod-1"))


def test_batch_job_takes_back_the_number_that_was_claimed_before(clock: Clock) -> None:
    """Numbers of batch jobs can be guessed; the job's own cgroup cannot be forged."""
    store = RankStore(clock=clock)
    for rank in range(2):
        store.put(snapshot(job_id="77", rank=rank, finished=True), OTHER)
    store.put(snapshot(job_id="78"), OTHER)
    job = Peer(USER.uid, "77")

    assert store.put(snapshot(job_id="77"), job)
    assert held(store) == [("77", 0), ("78", 0)]
    with pytest.raises(Forbidden, match="uid 1000"):
        store.put(snapshot(job_id="77", rank=1), OTHER)


def run(store: RankStore, ranks: Iterable[int], owner: Peer | None = None, **changes: Any) -> None:
    """Let the processes of *ranks* push, as they do a minute after they began."""
    for rank in ranks:
        store.put(snapshot(**({"rank": rank, "world_size": 4} | changes)), owner)


def test_restart_with_fewer_ranks_leaves_no_dead_copies(clock: Clock) -> None:
    """Ranks that a later attempt has no place for are gone, neither silent nor finished."""
    store = RankStore(clock=clock)
    run(store, range(4))
    clock.seconds += SILENT_SECONDS
    run(store, range(2), attempt=1, world_size=2, started_timestamp_seconds=1_065.0)

    assert held(store) == [("llama", 0), ("llama", 1)]


@pytest.mark.parametrize("ended", [True, False])
def test_requeued_job_leaves_no_dead_copies(clock: Clock, ended: bool) -> None:
    """Attempts that count from 0 again, on fewer ranks of this node, follow those before."""
    store = RankStore(clock=clock)
    run(store, range(4), attempt=3, finished=ended)
    clock.seconds += 70.0  # The next run begins ten seconds after the end of that.
    run(store, range(2), started_timestamp_seconds=1_070.0, heartbeat_timestamp_seconds=1_130.0)

    assert held(store) == [("llama", 0), ("llama", 1)]


def test_shrunk_job_of_the_same_attempt_leaves_no_dead_copies(clock: Clock) -> None:
    """Elastic ranks that shrink keep their attempt: those outside the new world are gone."""
    store = RankStore(clock=clock)
    run(store, range(4))
    clock.seconds += 5.0
    new: dict[str, Any] = {
        "started_timestamp_seconds": 1_062.0,
        "heartbeat_timestamp_seconds": 1_065.5,
    }
    run(store, range(2), world_size=2, **new)
    assert len(held(store)) == 4  # They may push yet: whoever does is no dead copy.

    clock.seconds += SILENT_SECONDS - 5.0
    run(store, range(2), world_size=2, sequence=2, **new)
    assert held(store) == [("llama", 0), ("llama", 1)]


@pytest.mark.parametrize("newer", [{"attempt": 1}, {"world_size": 3}])
def test_process_that_outlived_its_run_is_no_silent_rank(
    clock: Clock, newer: dict[str, Any]
) -> None:
    """Where the old run's processes end while the new one's begin, they still leave no copies."""
    store = RankStore(clock=clock)
    began: dict[str, Any] = {"started_timestamp_seconds": 1_060.5}
    run(store, range(3), heartbeat_timestamp_seconds=1_060.5, **began, **newer)
    clock.seconds += 5.0
    run(store, [3])  # It takes long to end.
    assert len(held(store)) == 4

    clock.seconds += SILENT_SECONDS
    run(store, range(3), sequence=2, heartbeat_timestamp_seconds=1_075.5, **began, **newer)
    assert held(store) == [("llama", 0), ("llama", 1), ("llama", 2)]


def test_silent_rank_of_this_run_stays(clock: Clock) -> None:
    """A rank that stops while its peers continue is silent, and held as such."""
    store = RankStore(clock=clock)
    run(store, range(4))
    clock.seconds += 600.0
    run(store, range(3), sequence=2)

    assert len(held(store)) == 4


def test_restart_makes_nobody_elses_ranks_disappear(clock: Clock) -> None:
    """Another user's job of the same name is another run, however new it is."""
    store = RankStore(clock=clock)
    run(store, [3], owner=USER)
    clock.seconds += 600.0
    run(store, [0], owner=OTHER, attempt=9, world_size=1)

    assert held(store) == [("llama", 0), ("llama", 3)]


def test_start_of_a_process_is_told_once(clock: Clock) -> None:
    """When the wall clock steps back in a run, none of its ranks began any later for that."""
    store = RankStore(clock=clock)
    store.put(snapshot())
    clock.seconds += 100.0
    store.put(snapshot(sequence=2, heartbeat_timestamp_seconds=1_000.0))

    (rank,) = store.ranks()
    assert rank.began_seconds == 5_000.0 - 60.5


@pytest.mark.parametrize(("finished", "retention_seconds"), [(True, 300.0), (False, 3_600.0)])
def test_rank_is_forgotten_after_its_retention(
    clock: Clock, finished: bool, retention_seconds: float
) -> None:
    """A finished rank stays five minutes, a silent one an hour, then all of it goes."""
    store = RankStore(clock=clock)
    store.put(snapshot(finished=finished))

    clock.seconds += retention_seconds
    assert held(store) == [("llama", 0)]
    clock.seconds += 0.1
    assert held(store) == []


@pytest.mark.parametrize("hour", [3_600.0, -3_600.0])
@pytest.mark.parametrize(("finished", "retention_seconds"), [(True, 300.0), (False, 3_600.0)])
def test_step_of_the_wall_clock_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, hour: float, finished: bool, retention_seconds: float
) -> None:
    """When the wall clock jumps an hour, no rank disappears and none becomes immortal."""
    wall, monotonic = Clock(), Clock()
    monkeypatch.setattr(time, "time", wall)
    monkeypatch.setattr(time, "monotonic", monotonic)
    store = RankStore()
    store.put(snapshot(finished=finished))

    wall.seconds += hour
    assert held(store) == [("llama", 0)]
    store.put(snapshot(job_id="after", finished=finished))
    wall.seconds -= hour
    monotonic.seconds += retention_seconds
    assert held(store) == [("after", 0), ("llama", 0)]
    monotonic.seconds += 0.1
    assert held(store) == []


@pytest.mark.parametrize(
    ("limits", "first", "second", "sentence"),
    [
        (RankLimits(ranks=1), {}, {"rank": 1}, "already has 1 ranks; .* --ranks.max"),
        (RankLimits(jobs=1), {}, {"job_id": "b"}, "already has 1 jobs; .* --ranks.jobs-max"),
        (
            RankLimits(peer_groups=1),
            {},
            {"rank": 1, "peer_group": "b"},
            "already has 1 peer groups; .* --ranks.peer-groups-max",
        ),
    ],
)
def test_limits_refuse_the_newcomer_only(
    clock: Clock, limits: RankLimits, first: dict[str, int], second: dict[str, int], sentence: str
) -> None:
    """At a limit a new rank is refused, and those held are not affected."""
    store = RankStore(limits, clock)
    store.put(snapshot(sequence=1, **first))

    with pytest.raises(NoRoom, match=sentence):
        store.put(snapshot(**second))
    assert store.put(snapshot(sequence=2, **first))
    assert held(store) == [("llama", 0)]


def test_ranks_that_ended_make_room(clock: Clock) -> None:
    """A full node still takes the next job: what finished goes first, then what fell silent."""
    store = RankStore(RankLimits(ranks=3), clock)
    store.put(snapshot(job_id="silent"))
    clock.seconds += 301
    store.put(snapshot(job_id="finished", finished=True))
    store.put(snapshot(job_id="running"))

    store.put(snapshot(job_id="next"))
    assert held(store) == [("finished", 0), ("next", 0), ("running", 0)]
    store.put(snapshot(job_id="third"))
    assert held(store) == [("next", 0), ("running", 0), ("third", 0)]
    with pytest.raises(NoRoom):
        store.put(snapshot(job_id="fourth"))


def test_ranks_come_in_numeric_order(clock: Clock) -> None:
    """Rank 10 follows rank 9, not rank 1."""
    store = RankStore(clock=clock)
    for rank in (10, 9, 1):
        store.put(snapshot(rank=rank, world_size=16))

    assert held(store) == [("llama", 1), ("llama", 9), ("llama", 10)]


ALICE, BOB, CAROL = Peer(1000), Peer(1001), Peer(1002)


def test_user_without_a_place_gets_a_share_of_a_crowds(clock: Clock) -> None:
    """Alice has all four jobs; Bob gets two of them, the last that began, and no more."""
    store = RankStore(RankLimits(ranks=16, jobs=4), clock)
    for number in range(4):
        clock.seconds += 1
        store.put(snapshot(job_id=f"alice-{number}"), ALICE)
        store.put(snapshot(job_id=f"alice-{number}", rank=1), ALICE)
    for number in range(2):
        store.put(snapshot(job_id=f"bob-{number}"), BOB)
    with pytest.raises(NoRoom, match="already has 4 jobs"):
        store.put(snapshot(job_id="bob-2"), BOB)
    for sequence in range(2, 100):
        with pytest.raises(NoRoom, match="already has 4 jobs"):
            store.put(snapshot(job_id="alice-3", sequence=sequence), ALICE)

    assert {job for job, _ in held(store)} == {"alice-0", "alice-1", "bob-0", "bob-1"}


def test_rank_gives_way_alone(clock: Clock) -> None:
    """For one rank of Bob's, one of Alice's goes: the job that fills the node stays."""
    store = RankStore(RankLimits(ranks=3), clock)
    for rank in range(3):
        store.put(snapshot(rank=rank), ALICE)
    store.put(snapshot(job_id="bob"), BOB)

    assert held(store) == [("bob", 0), ("llama", 0), ("llama", 1)]


def test_ranks_that_begin_are_bounded_by_user(clock: Clock) -> None:
    """Jobs that end as soon as they begin cannot fill a Prometheus with series."""
    store = RankStore(RankLimits(ranks=2), clock)
    for number in range(8):
        store.put(snapshot(job_id=f"job-{number}", finished=True), ALICE)
    with pytest.raises(NoRoom, match="8 ranks of this user started in the last minute"):
        store.put(snapshot(job_id="job-8"), ALICE)
    store.put(snapshot(job_id="bob"), BOB)
    clock.seconds += 60.0

    assert store.put(snapshot(job_id="job-8"), ALICE)


def test_nobody_gets_more_than_a_share_of_a_crowds(clock: Clock) -> None:
    """Each of three users is sure of a third; Alice keeps what nobody else is entitled to."""
    store = RankStore(RankLimits(jobs=9), clock)
    for number in range(8):
        clock.seconds += 1
        store.put(snapshot(job_id=f"alice-{number}"), ALICE)
    store.put(snapshot(job_id="carol"), CAROL)
    for number in range(3):
        store.put(snapshot(job_id=f"bob-{number}"), BOB)
    with pytest.raises(NoRoom, match="already has 9 jobs"):
        store.put(snapshot(job_id="bob-3"), BOB)

    assert len([job for job, _ in held(store) if job.startswith("alice")]) == 5


def test_more_users_than_places_do_not_take_turns(clock: Clock) -> None:
    """Who has the only place keeps it."""
    store = RankStore(RankLimits(jobs=1), clock)
    store.put(snapshot(job_id="alice"), ALICE)
    with pytest.raises(NoRoom):
        store.put(snapshot(job_id="bob"), BOB)

    assert held(store) == [("alice", 0)]


def test_known_rank_that_changes_its_group_needs_room_too(clock: Clock) -> None:
    """Else one rank could name a new group with each push."""
    store = RankStore(RankLimits(peer_groups=1), clock)
    store.put(snapshot(rank=0, peer_group="a"))
    store.put(snapshot(rank=1, peer_group="a"))
    with pytest.raises(NoRoom, match=r"--ranks\.peer-groups-max"):
        store.put(snapshot(rank=1, peer_group="b", sequence=2))
