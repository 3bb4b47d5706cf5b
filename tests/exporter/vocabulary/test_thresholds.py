"""Thresholds have one list, and an operator's overrides reach the exporter too."""

from pathlib import Path

import pytest

from exporter.errors import UsageError
from exporter.vocabulary.thresholds import Thresholds, defaults, read_overrides

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


def file_of(folder: Path, text: str) -> Path:
    path = folder / "overrides.yaml"
    path.write_text(text)
    return path


def test_override_of_a_job_comes_before_that_of_all(tmp_path: Path) -> None:
    thresholds = read_overrides(file_of(tmp_path, RULES))

    assert thresholds.value("gpus_lost_ratio", "llama") == 0.5
    assert thresholds.value("gpus_lost_ratio", "other") == 0.02
    assert thresholds.value("hang_seconds", "llama") == defaults()["hang_seconds"].value


def test_without_a_file_there_are_the_defaults() -> None:
    """Each default has a reason."""
    assert Thresholds().value("hang_seconds") == 120
    assert all(each.reason for each in defaults().values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RULES.replace("gpus_lost_ratio", "gpus_lost"), "overrides 'gpus_lost'"),
        (RULES.replace("vector(0.02)", "up * 2"), "cannot evaluate"),
        ("[1, 2]", "not a rule file"),
        ("{", "not YAML"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    """A typo in a name, an expression, another file."""
    with pytest.raises(UsageError, match=said):
        read_overrides(file_of(tmp_path, text))


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot read"), (b"\x1f\x8b\xff", "is not UTF-8 text")]
)
def test_file_that_is_missing_or_no_text_is_said(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    """A compressed file, say; the operator reads which one it is."""
    path = tmp_path / "rules.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        read_overrides(path)
