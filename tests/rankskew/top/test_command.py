"""`rankskew top` as a command: what it prints and how it ends."""

import json
import subprocess
import sys

import pytest

from rankskew.__main__ import main
from tests.exporter.running import ROOT
from tests.rankskew.client.servers import exporter_of
from tests.rankskew.top import fake_prometheus as fake
from tests.rankskew.top.documents import hung, job, live, straggler
from tests.rankskew.top.fake_prometheus import FakePrometheus

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize("flags", [["--once"], []])
def test_without_a_terminal_one_view_is_printed(flags: list[str], capsys: Captured) -> None:
    """A table without escape sequences, and status 0."""
    with exporter_of(live(straggler(), job("calm"))) as url:
        assert main(["top", "--exporter", url, *flags]) == 0

    said = capsys.readouterr()
    assert "Straggler  llama   1.9 of 8" in said.out
    assert ("\x1b" in said.out, said.err) == (False, "")


def test_prometheus_is_asked_with_its_flag(capsys: Captured) -> None:
    with FakePrometheus([*fake.job(state="straggler"), *fake.late()]).serve() as url:
        assert main(["top", "--prometheus", url, "--cluster", "eu", "--once"]) == 0

    assert "$0.75" in capsys.readouterr().out


def test_json_is_one_document(capsys: Captured) -> None:
    """--json prints all jobs; ranks only of the job that is named."""
    with exporter_of(live(straggler(), hung())) as url:
        assert main(["top", "--exporter", url, "--json"]) == 0
        fleet = json.loads(capsys.readouterr().out)
        assert main(["top", "--exporter", url, "--json", "--job", "llama"]) == 0
        one = json.loads(capsys.readouterr().out)

    assert [each["state"] for each in fleet["jobs"]] == ["hung", "straggler"]
    assert "ranks" not in fleet["jobs"][0]
    assert fleet["troubles"] == []
    (llama,) = one["jobs"]
    assert llama["culprit"] == {"rank": 2, "stage": "data"}
    assert [each["rank"] for each in llama["ranks"]] == [2, 0, 1, 3]
    assert llama["ranks"][0]["late"]["gpus_lost"] == 1.9


def test_trouble_is_one_line_and_status_2(capsys: Captured) -> None:
    """What does not answer is a sentence on stderr; a program has it in the document too."""
    with exporter_of(live()) as url:
        pass
    told = f"{url} does not answer: Connection refused."
    assert main(["top", "--exporter", url, "--once"]) == 2
    assert capsys.readouterr() == ("", f"rankskew: {told}\n")
    assert main(["top", "--exporter", url, "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["jobs"], document["troubles"]) == ([], [told])


def test_other_commands_do_not_wait_for_rich() -> None:
    """rich and the HTTP client are imported for a view only; the document needs no rich."""
    code = (
        "import sys; from rankskew.__main__ import main;"
        "main(['top', '--exporter', 'http://127.0.0.1:9', '--json']);"
        "assert 'rich' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
