"""promtool's failures are parsed as samples, whatever the labels contain."""

from pathlib import Path

import pytest

from exporter.errors import UsageError
from exporter.replay.promtool import SENTINEL, Sample, evaluate, group_order, parse, rule_files

ODD = 'x "q" \\ ü{a="b"}, 1E+00\n'
# As promtool 2.42 prints it; 3.x prints the same (cmd/promtool/unittest.go).
SAID = r"""Unit Testing:  t.yaml
  FAILED:
    expr: "ALERTS{a=\"b\"}", time: 1m15s,
        exp: nil
        got: {__name__="ALERTS", rank="3"} 1E+00, {__name__="ALERTS", rank="4"} -2.5E-01

    expr: "ALERTS{a=\"b\"}", time: 1d2h0m1s500ms,
        exp: nil
        got: {} NaN
"""
RULES = """groups:
  - name: {name}
    rules:
      - record: {record}
        expr: {expr}
"""


def rules(folder: Path, **groups: tuple[str, str]) -> list[Path]:
    """Write a rule file for each of *groups*: what it records, and from what."""
    for name, (record, expr) in groups.items():
        (folder / f"{name}.yaml").write_text(RULES.format(name=name, record=record, expr=expr))
    return rule_files(folder)


def test_complaints_are_samples() -> None:
    """Expression, time, labels and value of each sample are found in promtool's output."""
    ((expression, at),) = parse(SAID).items()

    assert expression == 'ALERTS{a="b"}'
    assert at[75.0] == [
        Sample({"__name__": "ALERTS", "rank": "3"}, 1.0),
        Sample({"__name__": "ALERTS", "rank": "4"}, -0.25),
    ]
    assert [sample.labels for sample in at[93601.5]] == [{}]


def test_rules_are_evaluated_in_the_order_of_what_they_read(tmp_path: Path) -> None:
    """A rule sees what another group recorded in the same evaluation, and odd labels survive."""
    files = rules(tmp_path, a=("of:b", "of:b2 + 1"), b=("of:b2", "2 * given"))
    label = ODD.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    series = [{"series": f'given{{job="{label}"}}', "values": "_ 1 2.5 stale"}]
    found = evaluate(files, series, '{__name__="of:b"}', [0.0, 0.5, 1.0, 1.5], 0.5)

    labels = {"__name__": "of:b", "job": ODD}
    assert found == {0.0: [], 0.5: [Sample(labels, 3.0)], 1.0: [Sample(labels, 6.0)], 1.5: []}


def test_groups_that_read_each_other_come_before_their_readers(tmp_path: Path) -> None:
    """A circle has no order, but a group that only reads from it comes after it."""
    files = rules(
        tmp_path,
        past=("p", "s[15m]"),
        straggler=("s", "p + t"),
        coverage=("c", "s"),
        thresholds=("t", "1"),
    )

    assert group_order(files) == ["thresholds", "past", "straggler", "coverage"]


def test_rules_that_promtool_refuses_are_named(tmp_path: Path) -> None:
    """A mistake in the user's rules is promtool's own line, not an empty result."""
    with pytest.raises(UsageError, match=r"promtool cannot evaluate the rules: .*bad\.yaml.*parse"):
        evaluate(rules(tmp_path, bad=("r", "sum(")), [], "up", [0.0], 15.0)


def test_rules_that_fail_while_they_run_are_named(tmp_path: Path) -> None:
    """So is a rule that meets series which it cannot match."""
    files = rules(tmp_path, bad=("r", "x * on () x"))
    series = [{"series": f'x{{a="{a}"}}', "values": "1"} for a in "ab"]

    with pytest.raises(UsageError, match="many-to-many"):
        evaluate(files, series, "up", [0.0], 15.0)


def test_more_series_than_promtool_holds_are_too_many_ranks(tmp_path: Path) -> None:
    """promtool's limit on samples is reported as what it means here: too many ranks."""
    series = [{"series": f'x{{rank="{rank}"}}', "values": "1"} for rank in range(10_001)]

    for rule, asked in (("sum(x)", "r"), ("1", "x")):
        with pytest.raises(UsageError, match=r"^the trace has too many ranks for promtool, which"):
            evaluate(rules(tmp_path, a=("r", rule)), series, asked, [0.0], 15.0)


def test_missing_promtool_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Prometheus is not installed, it is said what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UsageError, match=r"promtool is not on the PATH.*apt install prometheus"):
        evaluate(rules(tmp_path, a=("r", "1")), [], SENTINEL, [0.0], 15.0)


def test_promtool_that_cannot_run_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promtool that is not a program ends the command, with the system's own words."""
    (tmp_path / "promtool").touch(mode=0o644)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UsageError, match="cannot run promtool: Permission denied"):
        evaluate(rules(tmp_path, a=("r", "1")), [], SENTINEL, [0.0], 15.0)


def test_lock_of_an_editor_is_no_rule_file(tmp_path: Path) -> None:
    """Emacs links .#a.yaml to nowhere while a.yaml is edited; other editors hide theirs too."""
    files = rules(tmp_path, a=("r", "1"))
    (tmp_path / ".#a.yaml").symlink_to("me@host.1:2")
    (tmp_path / ".a.yml").write_text("groups: [")

    assert rule_files(tmp_path) == files


def test_rule_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A directory, a dangling link and bytes in the place of a rule file are reported by name."""
    for name in ("folder", "nowhere", "bytes"):
        (tmp_path / name).mkdir()
    (tmp_path / "folder" / "a.yaml").mkdir()
    (tmp_path / "nowhere" / "a.yaml").symlink_to("gone.yaml")
    (tmp_path / "bytes" / "a.yaml").write_bytes(b"\xff\xfe")

    for name, complaint in (
        ("folder", "cannot read .*a.yaml: Is a directory"),
        ("nowhere", "cannot read .*gone.yaml: No such file"),
        ("bytes", "a.yaml is not UTF-8 text"),
    ):
        with pytest.raises(UsageError, match=complaint):
            group_order(rule_files(tmp_path / name))


def test_directory_without_rules_is_refused(tmp_path: Path) -> None:
    """A wrong directory is not a set of rules under which nothing fires."""
    with pytest.raises(UsageError, match="has no rule file"):
        rule_files(tmp_path)
