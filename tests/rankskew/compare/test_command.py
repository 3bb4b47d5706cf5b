"""`rankskew compare`: the verdict, in words, as JSON and as the exit status."""

import json
from collections.abc import Iterator

import pytest

from rankskew.commands.compare import run
from tests.rankskew.compare.test_from_prometheus import RANKS, STEADY, answering, vector

NOWHERE = "http://127.0.0.1:1"
SIDES = "1000/1600..1700/2300"
# Steps that need a sixth less.
FASTER = STEADY | {"busy": lambda border: 1500 + 19.0 * RANKS * border}
LATE = ({"rank": "3", "stage": "data", "kind": "persistent", "instance": "a:1"}, 40.0)
FOUND = {
    "group by": vector(({"job_id": "llama", "rank": "0"}, 1)),
    "count_over_time": vector(LATE),
    "rankskew_wait_caused_seconds_total": vector(({"rank": "3"}, 1.5)),
}
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def faster() -> Iterator[str]:
    with answering(STEADY, None, FASTER, **FOUND) as prometheus:
        yield prometheus.url


@pytest.fixture(scope="module")
def slower() -> Iterator[str]:
    with answering(FASTER, None, STEADY, **FOUND) as prometheus:
        yield prometheus.url


def test_verdict_comes_first_and_is_the_status(faster: str, slower: str, capsys: Captured) -> None:
    assert run([SIDES, "--prometheus", faster]) == 0
    assert capsys.readouterr().out.startswith("job llama: improved\nSteps take 0.833 times")
    assert run([SIDES, "--prometheus", slower, "--markdown"]) == 1
    assert capsys.readouterr().out.startswith("# job llama: worse\n")


def test_too_few_steps_exit_2(capsys: Captured) -> None:
    few = STEADY | {"steps": lambda border: 4000 + RANKS * border}
    with answering(few, None, None, **FOUND) as prometheus:
        status = run([SIDES, "--prometheus", prometheus.url, "--json"])

    assert status == 2
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "cannot_tell"
    assert "has only 20 steps; at least 150 are needed" in said["why"]


def test_json_has_all_of_it(faster: str, capsys: Captured) -> None:
    assert run([SIDES, "--prometheus", faster, "--json"]) == 0

    said = json.loads(capsys.readouterr().out)
    assert (said["verdict"], said["cost"]["name"]) == ("improved", "step")
    assert (said["before"]["ranks"], said["before"]["begin"]) == (RANKS, 1000)
    assert said["cost"]["ratio"]["low"] <= said["cost"]["ratio"]["value"] < 1
    assert [tuple(each.values()) for each in said["late"]] == [(3, "data", "both", 1.5, 1.5)]
    assert [each["name"] for each in said["quantities"]] == [
        *("step", "tokens", "gpus_lost", "persistent", "rotating", "common", "forward"),
    ]


def test_a_silent_prometheus_exits_2(capsys: Captured) -> None:
    status = run(["--prometheus", NOWHERE, "-30m..-10m", "--json"])

    said = capsys.readouterr()
    assert status == 2
    assert said.err.startswith(f"rankskew: {NOWHERE} does not answer: ")
    assert json.loads(said.out)["verdict"] == "cannot_tell"
