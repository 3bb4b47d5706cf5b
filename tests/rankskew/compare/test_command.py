"""`rankskew compare`: the verdict, in words, as JSON and as the exit status."""

import json

import pytest

from rankskew.commands.compare import run
from tests.exporter.recorded import record

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A trace of a job whose rank 3 is late until step 160."""
    path = record(
        tmp_path_factory.mktemp("trace") / "job.csv",
        late=lambda rank, step: 0.3 if rank == 3 and step < 160 else 0.0,
        ranks=4,
        steps=320,
    )
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "status", "begin"),
    [
        (["0-159..160-319"], 0, "job j: improved\nSteps take 0."),
        (["160-319..0-159", "--markdown"], 1, "# job j: worse\n"),
    ],
)
def test_verdict_comes_first_and_is_the_status(
    trace: str, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, begin: str
) -> None:
    assert run(["--trace", trace, *arguments]) == status
    assert capsys.readouterr().out.startswith(begin)


def test_too_few_steps_exit_2(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["--trace", trace, "0-19..160-319", "--json"])

    assert status == 2
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "cannot_tell"
    assert said["why"].startswith("Before (steps 0 to 19) has only 20 steps; at least 150 are")


def test_json_has_all_of_it(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--trace", trace, "0-159..160-319", "--json"]) == 0

    said = json.loads(capsys.readouterr().out)
    assert (said["verdict"], said["cost"]["name"], said["before"]["ranks"]) == (
        "improved",
        "step",
        4,
    )
    assert said["cost"]["ratio"]["low"] < said["cost"]["ratio"]["value"] < 1
    assert (said["late"][0]["rank"], said["late"][0]["after"]) == (3, None)
    assert said["late"][0]["before"]["gpus_lost"] == pytest.approx(3 * 0.3 / 1.35, rel=0.1)
    assert [one["name"] for one in said["gpus_lost"]] == [
        "total",
        "persistent",
        "rotating",
        "common",
    ]


def test_a_silent_prometheus_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["--prometheus", NOWHERE, "-30m..-10m", "--json"])

    said = capsys.readouterr()
    assert status == 2
    assert said.err.startswith(f"rankskew: {NOWHERE} does not answer: ")
    assert json.loads(said.out)["verdict"] == "cannot_tell"
