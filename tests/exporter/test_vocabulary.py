"""Words and thresholds: one list of each, which covers all that can be said and read."""

import re
from pathlib import Path

import pytest

from exporter.causes.explain import ROWS
from exporter.causes.model import UNKNOWN
from exporter.errors import UsageError
from exporter.vocabulary.thresholds import Thresholds, defaults, read_overrides
from exporter.vocabulary.words import (
    CAUSES,
    COLOURS,
    KINDS,
    LATE_KINDS,
    REASONS,
    STAGES,
    STATES,
    cause_in_short,
    reasons_in_order,
    slow_at,
)
from generators import alert_rules
from rank_probe.judge import verdict
from rank_probe.wire import stages

SHADE = re.compile("#[0-9A-Fa-f]{6}")


def test_words_are_for_what_the_probe_says() -> None:
    """Stages in step order, each told by its colour. A hang is none of the judge's kinds."""
    colours = {stage.colour for stage in STAGES.values()}
    assert tuple(STAGES) == stages.STAGES
    assert all(SHADE.fullmatch(each) for each in colours)
    assert len(colours) == len(STAGES)

    assert set(KINDS) == {"hung", *verdict.LOST_KINDS}
    assert tuple(LATE_KINDS) == verdict.LATE_KINDS
    marked = {name for name, kind in LATE_KINDS.items() if kind.mark}
    assert marked == {verdict.DUTY, verdict.MILD, verdict.UNSYNCED}


def test_every_reason_has_words() -> None:
    """The rules know more reasons than the judge does."""
    rules = "".join(path.read_text() for path in alert_rules.rule_files())
    recorded = re.findall(r'"reason", "(\w+)", ""|{reason: (\w+)}', rules)

    names = {one or other for one, other in recorded} - {"spread", "padding"}  # Of batches.
    assert len(names) > 5
    assert names | set(verdict.REASONS) == set(REASONS)


def test_states_are_a_closed_set_with_colours_and_runbooks_that_exist() -> None:
    """The most urgent first; every state but the quiet ones leads to the runbook of an alert."""
    assert tuple(STATES) == (
        *("hung", "exporter_down", "ranks_missing", "starting", "not_judgeable", "slow_node"),
        *("straggler", "rotating", "healthy", "finished", "no_probe"),
    )
    quiet = {name for name, state in STATES.items() if not state.alerts}
    assert quiet == {"starting", "healthy", "finished", "no_probe"}
    assert {state.colour for state in STATES.values()} == set(COLOURS)
    runbooks = {name: state.runbook for name, state in STATES.items()}
    assert {name for name in runbooks if runbooks[name] is None} == {"healthy", "finished"}
    assert set(runbooks.values()) - {None} <= set(alert_rules.alerts())


def test_every_cause_has_words() -> None:
    """With the details that exporter/causes can find, and no others; short names are told apart."""
    found = {(row.cause, row.detail) for row in ROWS}
    worded = {(cause, d) for cause, said in CAUSES.items() for d in (*said.details, "")}

    assert found <= worded
    assert {(cause, detail) for cause, detail in worded - found if detail} == set()
    assert set(CAUSES) == {cause for cause, _ in found} | {UNKNOWN}
    assert len({cause.short for cause in CAUSES.values()}) == len(CAUSES)


def test_first_reason_is_the_one_that_explains_the_others() -> None:
    """Not the alphabetically first one; what an older version does not know comes last."""
    found = reasons_in_order({"warming_up", "a_new_one", "no_join", "off"})

    assert found == ["off", "no_join", "warming_up", "a_new_one"]


@pytest.mark.parametrize(
    ("cause", "detail", "words"),
    [
        ("slow_device", "clocks", "slow GPU (clock)"),
        ("gc", "", "garbage collection"),
        ("cpu", "a_new_one", "CPU (a new one)"),
        ("a_new_one", "of_some_kind", "a new one (of some kind)"),
        ("a_new_one", "", "a new one"),
    ],
)
def test_cause_in_short(cause: str, detail: str, words: str) -> None:
    """An exporter, or a probe, of a newer version may say what this one has no words for."""
    assert cause_in_short(cause, detail) == words
    assert (slow_at("data"), slow_at("new")) == ("loading data", "in new")


RULES = """
groups:
  - name: mine
    rules:
      - {record: "rankskew:threshold:override", labels: {name: gpus_lost_ratio}, expr: vector(0.02)}
      - record: rankskew:threshold:override
        labels: {name: gpus_lost_ratio, job_id: llama}
        expr: "0.5"
      - {record: "other:record", expr: "up"}
"""


def file_of(folder: Path, content: bytes | None) -> Path:
    path = folder / "overrides.yaml"
    if content is not None:
        path.write_bytes(content)
    return path


def test_override_of_a_job_comes_before_that_of_all(tmp_path: Path) -> None:
    """Where none is given there are the defaults, each with its reason."""
    thresholds = read_overrides(file_of(tmp_path, RULES.encode()))

    assert thresholds.value("gpus_lost_ratio", "llama") == 0.5
    assert thresholds.value("gpus_lost_ratio", "other") == 0.02
    assert thresholds.value("hang_seconds", "llama") == Thresholds().value("hang_seconds") == 120
    assert all(each.reason for each in defaults().values())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (RULES.replace("gpus_lost_ratio", "gpus_lost").encode(), "overrides 'gpus_lost'"),
        (RULES.replace("vector(0.02)", "up * 2").encode(), "cannot evaluate"),
        (b"[1, 2]", "not a rule file"),
        (b"{", "not YAML"),
        (None, "cannot read"),
        (b"\x1f\x8b\xff", "is not UTF-8 text"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    """A typo in a name, an expression, another file, none, or a compressed one."""
    with pytest.raises(UsageError, match=said):
        read_overrides(file_of(tmp_path, content))
