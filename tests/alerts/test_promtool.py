"""The rule files load in the oldest supported Prometheus, and do what their promtool tests say."""

from pathlib import Path

from tests.alerts.promtool import GROUPS, RULES, promtool

CASES = sorted(Path(__file__).parent.glob("*.yaml"))


def test_rules_pass_every_check_of_promtool() -> None:
    """No rule is invalid, duplicate, or outside of what Prometheus 2.42 understands."""
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES))

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_group_has_its_turn() -> None:
    """Groups are named after their file, and the tests evaluate all of them."""
    assert sorted(GROUPS) == [path.stem for path in RULES]


def test_alerts_fire_when_due_and_stay_quiet() -> None:
    """With the text promised, not before, and not on healthy input; what fails is named."""
    done = promtool("test", "rules", *map(str, CASES))

    assert done.stdout.count("SUCCESS") == len(CASES), done.stdout + done.stderr
    assert done.returncode == 0
