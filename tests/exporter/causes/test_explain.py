"""The best cause wins if it accounts for half of the excess; otherwise the cause is not known."""

import pytest

from exporter.causes.explain import MOST_GUESSES, ROWS, explain
from exporter.causes.model import Evidence, Lateness, Quantiles, ThreadState
from rank_probe.judge.verdict import PERSISTENT
from rankskew.diagnose.advice import advice
from tests.exporter.causes.planted import at, evidence, found, lateness, named, peers, why


def test_without_any_evidence_there_is_nothing_to_say() -> None:
    """Not even that the cause is not known."""
    late = Lateness("data", PERSISTENT, 0.2, {"data": 1.0})

    assert explain(late, Evidence({}), peers()) is None
    assert explain(late, Evidence({"gc_ratio": float("nan")}), None) is None
    # Nor of workers for which nobody waits.
    workers = [ThreadState("data", "sleep", 1.0)]
    assert explain(late, Evidence({}, worker_states=workers), peers()) is None


def test_two_half_causes_are_no_cause() -> None:
    """Both are told, with their shares."""
    cause = found(
        {"forward": 0.18, "data": 0.19},
        {"gpu_foreign_processes": 1.0},
        states=at("data", sleep=0.55),
    )

    assert cause.cause == "unknown"
    assert cause.share == 0
    assert [each.cause for each in cause.others] == ["foreign_process", "code"]
    assert [each.share for each in cause.others] == pytest.approx([0.48, 0.20], abs=0.02)
    assert cause.sentence.startswith("nothing that was measured accounts for half of it: it shares")
    assert " % of it)" in cause.sentence
    assert "NODE" in cause.first_action
    nothing = found({"forward": 0.3})
    assert nothing.sentence == "nothing that was measured accounts for half of it"
    assert (nothing.others, nothing.figure, nothing.value) == ((), "", None)


def test_what_explains_a_twentieth_is_not_worth_a_word() -> None:
    """A guess accounts for a tenth at least."""
    for share, guesses in ((0.4, []), (0.52, ["code"])):
        cause = found({"forward": 0.4}, states=at("forward", sleep=share))
        assert [each.cause for each in cause.others] == guesses


def test_next_best_guesses_are_told_with_a_cause() -> None:
    """At most two, each once, and none of the cause itself or of less than a tenth."""
    changes = {
        "gpu_foreign_processes": 1.0,
        "pcie_errors_per_second": 5.0,
        "nvlink_errors_per_second": 5.0,
        "read_bytes_per_second": 300e6,
        "major_faults_per_second": 500.0,
    }
    cause = found({"forward": 0.3, "data": 0.02}, changes)

    assert cause.cause == "foreign_process"
    assert [each.detail for each in cause.others] == ["pcie_errors", "nvlink_errors"]
    late_in_data = found({"forward": 0.2, "data": 0.4}, changes)
    assert named(late_in_data) == ("input", "reads")
    assert [each.cause for each in late_in_data.others] == ["foreign_process", "slow_device"]
    assert len(late_in_data.others) <= MOST_GUESSES


def test_most_peers_may_be_late_too() -> None:
    """A third of them is not: those are held against it."""
    usual = peers()
    for name, value in (("forward_seconds", 0.33), ("main_run_queue_ratio", 0.4)):
        usual[name] = Quantiles(usual[name].lower_third, value, value)
    usual["sm_clock_hertz"] = Quantiles(1.41e9, 1.41e9, 1.95e9)
    late = lateness({"forward": 0.4})

    waits = why(late, evidence({"forward": 0.4}, {"main_run_queue_ratio": 0.5}), usual)
    slow = why(late, evidence({"forward": 0.4}, {"sm_clock_hertz": 1.2e9}), usual)
    assert named(waits) == ("cpu", "run_queue")
    assert named(slow) == ("slow_device", "clocks")


def test_rank_alone_without_join_has_no_peers() -> None:
    """What its thread does, and what no healthy rank has, can still be told."""
    late = Lateness("data", PERSISTENT, 0.5, {"data": 1.0}, is_alone=True)
    asleep = Evidence({"gc_ratio": 0.01}, [ThreadState("data", "sleep", 0.9)])
    throttled = Evidence({"cpu_quota_throttled_ratio": 0.8, "sm_clock_hertz": 1e9})

    for said, cause in ((asleep, "code"), (throttled, "cpu")):
        assert why(late, said, None).cause == cause
        assert why(late, said, {}) == why(late, said, None)


def test_peers_of_zero_are_peers() -> None:
    """A clock of zero is no clock; a wait of zero is a good one."""
    usual = peers(main_run_queue_ratio=0.0, sm_clock_hertz=0.0, tokens_per_step=0.0)
    said = evidence({"forward": 0.3}, {"main_run_queue_ratio": 0.4, "sm_clock_hertz": 0.0})
    cause = why(lateness({"forward": 0.3}), said, usual)

    assert named(cause) == ("cpu", "run_queue")
    assert cause.peers_value == 0


@pytest.mark.parametrize("cause", sorted({row.cause for row in ROWS}))
def test_every_cause_has_advice(cause: str) -> None:
    """And every detail of it: what is told is also known what to do about."""
    entry = advice()[cause]
    details = {row.detail for row in ROWS if row.cause == cause}

    assert {detail for action in entry.actions for detail in action.details} <= details
