"""Slow loaders and slow storage."""

import pytest

from tests.exporter.causes.planted import at, found, named

LATE = {"data": 0.35}
WAITS = at("data", pipe=0.95, running=0.05)


@pytest.mark.parametrize("state", ["sleep", "lock", "socket", "pipe", "blocked", "disk", "running"])
def test_what_workers_do_is_why_it_waits(state: str) -> None:
    """The main thread's line is only that of the loop."""
    place = "get (corpus.py:41)"
    cause = found(LATE, states=WAITS, workers=at("data", place, **{state: 0.9}))

    assert named(cause) == ("input", "workers" if state == "running" else f"worker_{state}")
    assert place in cause.sentence


def test_what_workers_were_seen_to_do_is_the_better_evidence() -> None:
    """One that sleeps is not saturated; a mount says more than that it waits for a disk."""
    asleep, saturated = at("data", sleep=0.9), {"saturated_workers": 1.0}
    reads = at("data", "/data (fuse.sshfs)", disk=0.9)
    assert named(found(LATE, saturated, states=WAITS, workers=asleep)) == ("input", "worker_sleep")
    assert named(found(LATE, states=WAITS, workers=reads)) == ("input", "mount")


def test_worker_that_waits_for_a_cpu_like_all_is_at_work() -> None:
    """As far as its peers' workers wait too."""
    workers = at("data", running=0.5, cpu_queue=0.5)
    busy = {"workers_run_queue_ratio": 0.5}
    cause = found(LATE, busy, usual=dict(busy), states=WAITS, workers=workers)
    quiet = found({"data": 0.8}, {}, usual={"workers_run_queue_ratio": 0.0}, states=WAITS)

    assert named(cause) == ("input", "workers")
    assert cause.share > 0.95
    assert named(quiet) == ("input", "workers")
    asleep = at("data", cpu_queue=0.6, sleep=0.4)
    assert found(LATE, busy, usual=dict(busy), states=WAITS, workers=asleep).cause == "unknown"


def test_workers_that_nobody_sees_are_still_waited_for() -> None:
    """It is known that it waits for them, and not for what."""
    assert named(found(LATE, states=WAITS)) == ("input", "workers")
    saturated = found(LATE, {"saturated_workers": 1.0}, states=WAITS)
    assert saturated.figure == "saturated_workers"


@pytest.mark.parametrize(
    ("place", "detail"),
    [
        ("/data (nfs)", "nfs"),
        ("/data (nfs4)", "nfs"),
        ("/scratch (lustre)", "lustre"),
        ("/data (fuse.sshfs)", "mount"),
        ("/mnt/a (b) (9p)", "mount"),
        ("/ (ext4)", "disk"),
        ("/ (overlay)", "disk"),
        # A line of code ends in parentheses too.
        ("read (corpus.py:88)", "storage"),
        ("", "storage"),
    ],
)
@pytest.mark.parametrize(("stage", "cause"), [("data", "input"), ("checkpoint", "storage")])
def test_wait_for_a_disk_is_named_by_its_mount(
    stage: str, cause: str, place: str, detail: str
) -> None:
    """In data it is the input that is late; its peers write checkpoints too, but faster."""
    usual = {"checkpoint_seconds": 0.02}
    said = found({stage: 0.35}, usual=usual, states=at(stage, place, disk=0.9))

    assert named(said) == (cause, detail)
    assert place in said.sentence
    assert said.figure == f"{stage}_seconds"


@pytest.mark.parametrize(
    ("detail", "figure", "fact"),
    [
        ("nfs", {"node_mount_operation_seconds": 0.031}, "/data (nfs4)"),
        ("lustre", {"node_mount_operation_seconds": 0.031}, "/scratch (lustre)"),
        ("mount", {"node_mount_operation_seconds": 0.031}, ""),
        ("disk", {"node_disk_busy_ratio": 0.96}, "nvme0n1"),
        ("disk", {"node_disk_read_seconds": 0.05}, "nvme0n1"),
        ("storage", {"node_io_waiting_ratio": 0.5}, ""),
    ],
)
@pytest.mark.parametrize(("stage", "cause"), [("data", "input"), ("eval", "storage")])
def test_storage_of_a_node_explains_a_slow_node(
    stage: str, cause: str, detail: str, figure: dict[str, float], fact: str
) -> None:
    """In the stages that use it; not one rank of many, unless its thread was seen to wait."""
    facts = dict.fromkeys(figure, fact)
    usual: dict[str, float | None] = {"eval_seconds": 0.02}

    said = found({stage: 0.25}, figure, facts=facts, usual=usual, of_node=True)
    assert named(said) == (cause, detail)
    assert fact in said.sentence
    assert found({stage: 0.25}, figure, facts=facts, usual=usual).cause == "unknown"
    assert found({"forward": 0.25}, figure, facts=facts, of_node=True).cause == "unknown"


def test_slow_disk_is_why_a_thread_waits_for_it() -> None:
    """Then it is told, with both figures, though other ranks of the node keep up."""
    changes = {"node_disk_busy_ratio": 0.96, "node_mount_operation_seconds": 0.05}
    facts = {"node_disk_busy_ratio": "nvme0n1", "node_mount_operation_seconds": "/data (nfs)"}
    waits = found(LATE, changes, facts=facts, states=at("data", "/scratch (ext4)", disk=0.9))
    asleep = found(LATE, changes, facts=facts, states=at("data", sleep=0.9), of_node=True)

    assert waits.sentence.startswith("a disk of its node, nvme0n1, is busy 96 %")
    assert named(asleep) == ("code", "sleep")
