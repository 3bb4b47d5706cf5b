"""Neither another user of the node nor root in another container gets at somebody's job."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from exporter.operator.orders import CONTROL_PATH
from rank_probe.wire.snapshot import SNAPSHOT_PATH
from tests.exporter.running import RunningExporter
from tests.exporter.snapshots import snapshot, verdict

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else"),
]

STRANGER = Path(__file__).with_name("stranger.py")
EXPORTERS_UID = 9917
# Who owns the job, and who is after it. Nobody's user namespace has the user of anybody else.
PAIRS = [
    ("user 1001", "user 1002"),
    ("user 1001", "fake_root 100000"),
    ("user 1001", "container 0"),
    ("fake_root 100000", "fake_root 100001"),
    ("container 0", "container 0"),
    ("container 0", "user 1002"),
]
NOT_YOURS = "belongs to another user or container"
RANKS, JOBS = 8, 4


class Unprivileged(RunningExporter):
    """The exporter as its systemd unit runs it: a user of its own who may not trace others.

    The one capability is for reading an interpreter that lies in root's home.
    """

    COMMAND = (  # type: ignore[assignment, misc] # Final in the base
        *("setpriv", f"--reuid={EXPORTERS_UID}", f"--regid={EXPORTERS_UID}", "--clear-groups"),
        *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
        *("--bounding-set=-all,+dac_read_search", sys.executable, "-m", "rankskew", "exporter"),
    )


class Person:
    """Somebody who runs beside the exporter, see stranger.py."""

    def __init__(
        self, who: str, directory: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        command = [sys.executable, str(STRANGER), *who.split(), str(directory)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def do(self, *action: Any) -> Any:
        """Do *action* as this person; return what came of it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(action), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate(timeout=10)


class Node:
    """The directories of a node, and its exporter."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "run" / "exporter.sock"
        self.operator = directory / "operator" / "operator.sock"
        self.token = directory / "etc" / "token"
        directory.chmod(0o755)
        for part in (self.socket.parent, self.operator.parent, self.token.parent):
            part.mkdir(mode=0o755)
            os.chown(part, EXPORTERS_UID, EXPORTERS_UID)
        self.token.write_text("a-secret\n")
        self.token.chmod(0o640)
        os.chown(self.token, 0, EXPORTERS_UID)
        self.exporter = Unprivileged(
            self.socket,
            f"--operator.socket={self.operator}",
            "--ingest.listen-address=127.0.0.1:0",
            f"--ingest.token-file={self.token}",
            "--path.state=",
            f"--ranks.max={RANKS}",
            f"--ranks.jobs-max={JOBS}",
        )

    def push(self, person: Person, **changes: Any) -> tuple[int, str | None]:
        """Push a snapshot as *person*; return the status and the reason if it is refused."""
        body = asdict(snapshot(**changes))
        status, answer = person.do("post", str(self.socket), SNAPSHOT_PATH, body)
        return status, answer.get("error")

    def turn_off(self, person: Person, job_id: str, where: Path) -> Any:
        return person.do("post", str(where), CONTROL_PATH, {"job_id": job_id, "level": "off"})


@pytest.fixture(scope="module", params=PAIRS, ids=" and ".join)
def people(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Who owns the job, and who is after it."""
    names: tuple[str, str] = request.param
    return names


@pytest.fixture(scope="module")
def node(people: tuple[str, str]) -> Iterator[Node]:
    """A node; not in pytest's own directories, which let nobody else in."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="rankskew-isolation-"))
        stack.callback(shutil.rmtree, directory)
        running = Node(directory)
        stack.callback(running.exporter.kill)
        yield running


@pytest.fixture(scope="module")
def pair(people: tuple[str, str], node: Node) -> Iterator[tuple[Person, Person]]:
    """The two of them, on the node."""
    with ExitStack() as stack:
        owner, other = (Person(who, node.directory) for who in people)
        stack.callback(owner.end)
        stack.callback(other.end)
        yield owner, other


@pytest.fixture
def job_id(request: pytest.FixtureRequest, node: Node, pair: tuple[Person, Person]) -> str:
    """A job of the first of the pair, which reports rank 0; each test lets its own end."""
    name = str(request.node.originalname)
    assert node.push(pair[0], job_id=name, rank=0) == (200, None)
    return name


FORGERIES: dict[str, dict[str, Any]] = {
    "the same rank": {"rank": 0, "sequence": 99},
    "a newer process": {"rank": 0, "attempt": 9, "started_timestamp_seconds": 1e9},
    "a clean end": {"rank": 0, "sequence": 99, "finished": True},
}
ADDITIONS: dict[str, dict[str, Any]] = {
    "a further rank": {"rank": 3, "world_size": 4},
    "a verdict": {"rank": 3, "verdict": verdict(step=10**9, late=()), "verdict_age_seconds": 0.0},
    "a smaller job": {"rank": 1, "world_size": 2, "attempt": 9},
}


def test_nobody_else_reports_a_rank(node: Node, pair: tuple[Person, Person], job_id: str) -> None:
    """Not its state, not a newer process of it, and not that it has finished."""
    owner, other = pair
    for name, forged in FORGERIES.items():
        status, reason = node.push(other, job_id=job_id, **forged)
        assert (status, NOT_YOURS in (reason or "")) == (403, True), name
    assert node.push(owner, job_id=job_id, sequence=2, steps=4711) == (200, None)

    page = node.exporter.metrics()
    assert f'rankskew_steps_total{{job_id="{job_id}",peer_group="all",rank="0"}} 4711.0' in page
    assert f'rankskew_rank_finished{{job_id="{job_id}"' not in page
    assert node.push(owner, job_id=job_id, sequence=3, finished=True) == (200, None)
    assert f'rankskew_rank_finished{{job_id="{job_id}"' in node.exporter.metrics()


def test_nobody_else_speaks_for_the_job(
    node: Node, pair: tuple[Person, Person], job_id: str, people: tuple[str, str]
) -> None:
    """Another user adds no rank to it; what a container of the same user adds decides nothing."""
    owner, other = pair
    is_one_user = people[0] == people[1]
    said = verdict()
    assert node.push(owner, job_id=job_id, sequence=2, world_size=8, verdict=said) == (200, None)
    for name, added in ADDITIONS.items():
        status, reason = node.push(other, job_id=job_id, **added)
        if is_one_user:
            assert (status, reason) == (200, None), name
        else:
            assert (status, NOT_YOURS in (reason or "")) == (403, True), name

    page = node.exporter.metrics()
    lost = f'rankskew_job_gpus_lost{{job_id="{job_id}",kind="persistent"}} 1.0'
    assert lost in page
    assert f'rankskew_node_world_size{{job_id="{job_id}"}} 8.0' in page
    node.push(owner, job_id=job_id, sequence=3, finished=True)
    for rank in (1, 3) if is_one_user else ():
        node.push(other, job_id=job_id, rank=rank, attempt=10, finished=True)


def test_nobody_else_turns_the_probe_off(
    node: Node, pair: tuple[Person, Person], job_id: str
) -> None:
    """On the ingest socket the job is another's; the operator's socket is closed, or not there."""
    owner, other = pair
    status, answer = node.turn_off(other, job_id, node.socket)
    assert (status, NOT_YOURS in answer["error"]) == (403, True)
    assert node.turn_off(other, job_id, node.operator) in (
        "PermissionError: Permission denied",
        "FileNotFoundError: No such file or directory",
    )
    assert owner.do("post", str(node.socket), SNAPSHOT_PATH, as_body(job_id, 2)) == [200, {}]

    assert node.turn_off(owner, job_id, node.socket) == [200, {"ranks": 1}]
    answer = owner.do("post", str(node.socket), SNAPSHOT_PATH, as_body(job_id, 3))
    assert answer == [200, {"level": "off"}]
    node.push(owner, job_id=job_id, sequence=4, finished=True)


def as_body(job_id: str, sequence: int) -> dict[str, Any]:
    return asdict(snapshot(job_id=job_id, sequence=sequence))


def test_nobody_replaces_the_socket(node: Node, pair: tuple[Person, Person], job_id: str) -> None:
    """The directory belongs to the exporter's user, and containers have it read-only."""
    owner, other = pair
    assert other.do("replace_socket", str(node.socket)) in (
        "PermissionError: Permission denied",
        "OSError: Read-only file system",
    )

    assert node.push(owner, job_id=job_id, sequence=2) == (200, None)
    node.push(owner, job_id=job_id, sequence=3, finished=True)


def test_nobody_reads_the_token(node: Node, pair: tuple[Person, Person], job_id: str) -> None:
    """Its file is the exporter's, and not in any container; without it TCP takes nothing."""
    owner, other = pair
    port = node.exporter.tcp_port()
    for person in pair:
        assert person.do("read", str(node.token)) in (
            "PermissionError: Permission denied",
            "FileNotFoundError: No such file or directory",
        )
    status, answer = other.do("post", port, SNAPSHOT_PATH, as_body(job_id, 9))
    assert (status, "wants the token" in answer["error"]) == (401, True)

    body = snapshot(job_id=f"{job_id}-tcp", finished=True).to_json()
    shown = node.exporter.push_over_tcp(port, body, Authorization="Bearer a-secret")
    assert shown == (200, {})
    node.push(owner, job_id=job_id, sequence=2, finished=True)


def test_nobody_fills_the_node(node: Node, pair: tuple[Person, Person], job_id: str) -> None:
    """Who claims every rank and every job leaves others their share, running or to come."""
    owner, other = pair
    answers = [node.push(other, job_id=f"flood-{n}", rank=n % 2) for n in range(2 * RANKS)]
    refused = [reason for status, reason in answers if status == 429]
    assert refused
    assert all("This node already has" in (reason or "") for reason in refused)

    assert node.push(owner, job_id=job_id, sequence=2) == (200, None)
    assert node.push(owner, job_id=f"{job_id}-next") == (200, None)
    for name in (job_id, f"{job_id}-next"):
        assert f'rankskew_steps_total{{job_id="{name}",' in node.exporter.metrics()
        node.push(owner, job_id=name, sequence=3, finished=True)
    for number in range(2 * RANKS):
        node.push(other, job_id=f"flood-{number}", rank=number % 2, sequence=2, finished=True)
