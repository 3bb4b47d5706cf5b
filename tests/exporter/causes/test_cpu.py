"""Too little CPU, or the wrong CPUs."""

import pytest

from exporter.causes.explain import explain
from rank_probe.judge.verdict import PERSISTENT
from tests.exporter.causes.planted import evidence, found, lateness, named, peers

COMPUTE = {"forward": 0.3}
BUSY = {"main_run_queue_ratio": 0.3, "node_cpu_waiting_ratio": 0.95}
HALF = [
    ("forward", "running", 0.5, "spin (train.py:58)"),
    ("forward", "cpu_queue", 0.5, "spin (train.py:58)"),
]


def test_wait_for_a_cpu_is_found() -> None:
    """As a time that its peers do not wait."""
    cause = found(COMPUTE, {"main_run_queue_ratio": 0.34}, states=HALF)

    assert named(cause) == ("cpu", "run_queue")
    assert cause.sentence == "its main thread waits for a CPU 34 % of the time, its peers' 0.5 %"


@pytest.mark.parametrize("own", [0.25, 0.3, 0.35])
def test_wait_that_all_share_is_nobodys_cause(own: float) -> None:
    """On a machine where all ranks wait for a CPU alike, though the rank is hardly late."""
    for states in ((), HALF):
        cause = found({"forward": 0.06}, {"main_run_queue_ratio": own}, usual=BUSY, states=states)
        assert cause.cause != "cpu"


def test_rank_that_sleeps_is_not_short_of_cpu() -> None:
    """However long its run queue is: that is what was wrong before."""
    states = [("data", "sleep", 0.95, "get (corpus.py:41)"), ("data", "cpu_queue", 0.05, "")]
    changes = {"main_run_queue_ratio": 0.6, "cpu_quota_throttled_ratio": 0.9}
    cause = found({"data": 0.3}, changes, usual=BUSY, states=states)

    assert named(cause) == ("code", "sleep")


def test_sleep_that_peers_may_have_too_does_not_hide_a_wait_for_a_cpu() -> None:
    """Nobody knows how long they sleep there; how long they wait for a CPU is known."""
    states = [
        ("forward", "sleep", 0.5, "rest (train.py:60)"),
        ("forward", "cpu_queue", 0.3, "spin (train.py:58)"),
    ]
    cause = found({"forward": 0.2}, {"main_run_queue_ratio": 0.13}, states=states)

    assert named(cause) == ("cpu", "run_queue")


def test_who_runs_more_waits_more_where_all_wait() -> None:
    """A decoder in one rank, on a machine without a free CPU: the decoder is the cause."""
    states = [
        ("data", "running", 0.55, "decode (corpus.py:30)"),
        ("data", "cpu_queue", 0.45, "decode (corpus.py:30)"),
    ]
    usual = {"main_run_queue_ratio": 0.1, "main_running_ratio": 0.12}
    changes = {"main_run_queue_ratio": 0.4, "main_running_ratio": 0.5}
    cause = found({"data": 0.5}, changes, usual=usual, states=states)

    assert named(cause) == ("code", "running")
    assert cause.sentence.startswith("it runs `decode (corpus.py:30)` for ")


def test_used_up_quota_is_why_it_waits() -> None:
    """It explains its run queue, too."""
    changes = {"cpu_quota_throttled_ratio": 0.9, "main_run_queue_ratio": 0.4}
    cause = found(COMPUTE, changes, states=HALF)

    assert named(cause) == ("cpu", "throttled")
    assert cause.sentence == "its CPU quota is used up in 90 % of its periods, its peers' in 0.2 %"
    assert (cause.others[0].cause, cause.others[0].detail) == ("cpu", "run_queue")


def test_quota_needs_no_peers() -> None:
    """A healthy rank uses none up; its run queue cannot be told."""
    nobody = dict.fromkeys(("cpu_quota_throttled_ratio", "main_run_queue_ratio"))

    changes = {"cpu_quota_throttled_ratio": 0.9, "main_run_queue_ratio": 0.9}
    assert named(found(COMPUTE, changes, usual=nobody)) == ("cpu", "throttled")
    waits = found(COMPUTE, {"main_run_queue_ratio": 0.9}, usual=nobody)
    assert waits.cause == "unknown"


@pytest.mark.parametrize(("peers_wait", "cause"), [(0.05, "cpu"), (0.5, "unknown")])
def test_workers_that_wait_for_cpus_delay_batches(peers_wait: float, cause: str) -> None:
    """If those of its peers do not: 60 % longer without a CPU is 2.5 times as long."""
    said = found(
        {"data": 0.3},
        {"workers_run_queue_ratio": 0.6},
        usual={"workers_run_queue_ratio": peers_wait},
        states=[("data", "pipe", 1.0, "")],
        workers=[("data", "cpu_queue", 0.6, ""), ("data", "sleep", 0.4, "")],
    )

    assert said.cause == cause


def test_cpus_far_from_its_gpu_are_found() -> None:
    """If its peers' are near theirs."""
    cause = found({"h2d": 0.1, "forward": 0.1}, {"cpus_near_gpu_ratio": 0.0})

    assert named(cause) == ("cpu", "numa")
    assert cause.sentence == "0 % of its CPUs are on its GPU's NUMA node, 100 % of its peers'"
    assert found(COMPUTE, {"cpus_near_gpu_ratio": 0.06}).cause == "unknown"


@pytest.mark.parametrize(
    ("detail", "changes", "says"),
    [
        (
            "thermal",
            {"node_cpu_throttled_ratio": 0.6, "node_cpu_clock_hertz": 1.86e9},
            "its node's CPUs are throttled by heat 60 % of the time, its peers' 0 %",
        ),
        (
            "frequency",
            {"node_cpu_clock_hertz": 1.24e9},
            "its node's busy CPUs run at 1.24 GHz, its peers' at 3.12",
        ),
        (
            "steal",
            {"node_steal_cpus": 4.0},
            "the hypervisor steals 4 CPUs from its node, 0 from its peers'",
        ),
        (
            "node",
            {"node_cpu_waiting_ratio": 0.61},
            "tasks on its node wait for a CPU 61 % of the time, its peers' 1 %",
        ),
        (
            "numa_miss",
            {"node_numa_misses_per_second": 50_000.0},
            "its node's NUMA miss rate is 50,000 a second, its peers' 0",
        ),
    ],
)
def test_node_explains_a_slow_node_but_not_one_rank_of_many(
    detail: str, changes: dict[str, float], says: str
) -> None:
    """Its other ranks have the same CPUs and keep up; a rank that is alone has none beside it."""
    extra = {"data": 0.05, "forward": 0.15}
    cause = found(extra, changes, of_node=True)

    assert named(cause) == ("cpu", detail)
    assert cause.sentence == says
    assert found(extra, changes).cause == "unknown"
    late = lateness(extra, PERSISTENT, is_alone=True)
    alone = explain(late, evidence(extra, changes), peers())
    assert alone is not None
    assert named(alone) == ("cpu", detail)


def test_what_all_nodes_have_explains_none() -> None:
    """Nor what peers on its own node share, where there are no others."""
    busy = {"node_cpu_waiting_ratio": 0.9, "node_cpu_clock_hertz": 1.24e9}

    cause = found({"forward": 0.2}, busy, usual={name: busy[name] for name in busy}, of_node=True)
    assert cause.cause == "unknown"


@pytest.mark.parametrize(("own", "share"), [(0.4, 0.70), (1.0, 0.995), (7.0, 0.995)])
def test_workers_without_cpus_take_as_much_longer(own: float, share: float) -> None:
    """A third of the time that its peers have a CPU is missing; more than all cannot be."""
    usual: dict[str, float | None] = {"workers_run_queue_ratio": 0.1}
    cause = found({"data": 0.9}, {"workers_run_queue_ratio": own}, usual=usual)

    assert named(cause) == ("cpu", "workers_run_queue")
    assert cause.share == pytest.approx(share, abs=0.03)


def test_run_queue_needs_no_running_time() -> None:
    """Where that is not known of the rank or of its peers, their queues are compared."""
    for unknown in ({"main_running_ratio": None}, {"main_running_ratio": 0.0}):
        cause = found(COMPUTE, {"main_run_queue_ratio": 0.34}, usual=dict(unknown))
        assert named(cause) == ("cpu", "run_queue")
