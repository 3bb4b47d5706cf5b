"""`rankskew confirm` as a command."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rankskew.__main__ import main
from rankskew.report.incidents import identity, incident_id
from tests.rankskew.report.fake_history import FakeHistory

Captured = pytest.CaptureFixture[str]
LABELS = {
    "alertname": "RankskewStraggler",
    "cluster": "eu",
    "job_id": "llama",
    "rank": "3",
    "instance": "n1:9917",
}
BEGIN = datetime.now(UTC).timestamp() // 60 * 60 - 3600
ID = incident_id("RankskewStraggler", identity(LABELS), BEGIN)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[list[str]]:
    """The last arguments: a Prometheus in which one rank is late, and a file that is not there."""
    fake = FakeHistory({"ALERTS": [(LABELS, [(BEGIN, BEGIN + 600)], 1.0)]})
    with fake.serve() as url:
        yield ["--prometheus", url, "--file", str(tmp_path / "said.jsonl")]


def test_what_is_said_is_listed(command: list[str], capsys: Captured) -> None:
    """With what it is of, who said it and why; the last word counts."""
    assert main(["confirm", ID, "no", *command, "--by", "bob"]) == 0
    assert capsys.readouterr().out == (
        f"{ID}, RankskewStraggler for rank 3 on n1:9917 of job llama: no; "
        f"written to {command[-1]}\n"
    )
    assert main(["confirm", ID, "yes", *command, "--by", "ada", "--note", "a slow disk"]) == 0
    capsys.readouterr()
    assert main(["confirm", "--list", *command]) == 0

    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{ID}  yes     RankskewStraggler for rank 3 on n1:9917 of job llama")
    assert line.endswith(" UTC: a slow disk")
    assert ", by ada at " in line


def test_second_word_needs_no_prometheus(command: list[str], capsys: Captured) -> None:
    """What an incident is stands in the file: Prometheus may have forgotten it."""
    assert main(["confirm", ID, "no", *command]) == 0
    command[1] = "http://127.0.0.1:9"

    assert main(["confirm", ID, "yes", *command]) == 0


def test_json_has_what_was_written(command: list[str], capsys: Captured) -> None:
    assert main(["confirm", ID, "unsure", *command, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    with Path(command[-1]).open("a") as file:
        file.write("broken\n")
    assert main(["confirm", "--list", "--json", *command]) == 0
    listed = json.loads(capsys.readouterr().out)

    assert (written["incident"], written["verdict"], written["began"]) == (ID, "unsure", BEGIN)
    assert (written.pop("schema"), listed["schema"]) == ("confirm/1", "confirm-list/1")
    assert listed["confirmations"] == [written]
    assert listed["broken_lines"] == [2]


def test_unknown_incident_is_one_sentence(command: list[str], capsys: Captured) -> None:
    assert main(["confirm", "1112-0604-rha3", "yes", *command]) == 2

    assert capsys.readouterr().err == (
        f"rankskew: {command[1]} has no incident '1112-0604-rha3'; "
        "rankskew report --shadow prints those that it has\n"
    )
    assert not Path(command[-1]).exists()


def test_list_of_what_cannot_be_read_is_empty(command: list[str], capsys: Captured) -> None:
    """It names the file on stdout, and the line on stderr, so that a script does not see it."""
    Path(command[-1]).write_text("broken\n")
    assert main(["confirm", "--list", *command]) == 0

    said = capsys.readouterr()
    assert said.out == f"nothing is written in {command[-1]}\n"
    assert said.err.endswith("not readable and left out: line 1\n")
