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
JOB = "llama"
DENIED = "PermissionError: Permission denied"
NOT_THERE = "FileNotFoundError: No such file or directory"


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
    """The directories of a node, its exporter, the *owner* of JOB, and somebody after it."""

    def __init__(self, directory: Path, owner: str, other: str) -> None:
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
        self.is_one_user = owner == other
        self.owner, self.other = Person(owner, directory), Person(other, directory)
        self._sequence = 0

    def end(self) -> None:
        for person in (self.owner, self.other):
            person.end()
        self.exporter.kill()

    def push(self, person: Person, **changes: Any) -> tuple[int, Any]:
        """Push a newer snapshot as *person*; return the status and the answer, or its error."""
        self._sequence += 1
        body = asdict(snapshot(**{"job_id": JOB, "sequence": self._sequence} | changes))
        status, answer = person.do("post", str(self.socket), SNAPSHOT_PATH, body)
        return status, answer.get("error", answer)

    def turn_off(self, person: Person, where: Path) -> Any:
        """Turn off the probe of a job of the owner's at the socket *where*."""
        return person.do("post", str(where), CONTROL_PATH, {"job_id": "quiet", "level": "off"})

    def has(self, name: str, value: object = "", **labels: object) -> bool:
        """Whether the page has a series of JOB with these *labels*, among others, and *value*."""
        return any(
            line.startswith(f"{name}{{")
            and line.endswith(f" {value}" if value else "")
            and all(f'{key}="{text}"' in line for key, text in ({"job_id": JOB} | labels).items())
            for line in self.exporter.metrics().splitlines()
        )


@pytest.fixture(scope="module", params=PAIRS, ids=" and ".join)
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node on which JOB runs; not in pytest's own directories, which let nobody else in."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="rankskew-isolation-"))
        stack.callback(shutil.rmtree, directory)
        running = Node(directory, *request.param)
        stack.callback(running.end)
        assert running.push(running.owner) == (200, {})
        yield running


def test_nobody_else_reports_a_rank(node: Node) -> None:
    """Not its state, not a newer process of it, and not that it has finished."""
    newer: dict[str, Any] = {"attempt": 9, "started_timestamp_seconds": 1e9}
    for forged in ({"steps": 1}, newer, {"finished": True}):
        status, reason = node.push(node.other, **forged)
        assert (status, NOT_YOURS in reason) == (403, True), forged
    assert node.push(node.owner, steps=4711) == (200, {})

    assert node.has("rankskew_steps_total", 4711.0, rank=0)
    assert not node.has("rankskew_rank_finished")
    assert node.push(node.owner, job_id="over", finished=True) == (200, {})
    assert node.has("rankskew_rank_finished", job_id="over")


def test_nobody_else_speaks_for_the_job(node: Node) -> None:
    """Another user adds no rank to it; what a container of the same user adds decides nothing."""
    said = verdict()
    assert node.push(node.owner, world_size=8, verdict=said) == (200, {})
    forged = {"verdict": verdict(step=10**9, late=()), "verdict_age_seconds": 0.0}
    smaller = {"world_size": 2, "attempt": 9}
    for rank, added in ((3, {"world_size": 4}), (3, forged), (1, smaller)):
        status, reason = node.push(node.other, rank=rank, **added)
        if node.is_one_user:
            assert (status, reason) == (200, {}), added
        else:
            assert (status, NOT_YOURS in reason) == (403, True), added

    assert node.has("rankskew_job_gpus_lost", 1.0, kind="persistent")
    assert node.has("rankskew_node_world_size", 8.0)


def test_nobody_else_turns_the_probe_off(node: Node) -> None:
    """On the ingest socket the job is another's; the operator's socket is closed, or not there."""
    assert node.push(node.owner, job_id="quiet") == (200, {})
    status, answer = node.turn_off(node.other, node.socket)
    assert (status, NOT_YOURS in answer["error"]) == (403, True)
    assert node.turn_off(node.other, node.operator) in (DENIED, NOT_THERE)
    assert node.push(node.owner, job_id="quiet") == (200, {})

    assert node.turn_off(node.owner, node.socket) == [200, {"ranks": 1}]
    assert node.push(node.owner, job_id="quiet", finished=True) == (200, {"level": "off"})


def test_nobody_replaces_the_socket(node: Node) -> None:
    """The directory belongs to the exporter's user, and containers have it read-only."""
    refused = (DENIED, "OSError: Read-only file system")
    assert node.other.do("replace_socket", str(node.socket)) in refused

    assert node.push(node.owner) == (200, {})


def test_nobody_reads_the_token(node: Node) -> None:
    """Its file is the exporter's, and not in any container; without it TCP takes nothing."""
    port, body = node.exporter.tcp_port(), snapshot(job_id="over-tcp", finished=True)
    for person in (node.owner, node.other):
        assert person.do("read", str(node.token)) in (DENIED, NOT_THERE)
    status, answer = node.other.do("post", port, SNAPSHOT_PATH, asdict(body))
    assert (status, "wants the token" in answer["error"]) == (401, True)

    shown = node.exporter.push_over_tcp(port, body.to_json(), Authorization="Bearer a-secret")
    assert shown == (200, {})


def test_nobody_fills_the_node(node: Node) -> None:
    """Who claims every rank and every job leaves others their share, running or to come."""
    answers = [node.push(node.other, job_id=f"flood-{n}", rank=n % 2) for n in range(2 * RANKS)]
    refused = [reason for status, reason in answers if status == 429]
    assert refused
    assert all("This node already has" in reason for reason in refused)

    for job_id in (JOB, "next"):
        assert node.push(node.owner, job_id=job_id) == (200, {})
        assert node.has("rankskew_steps_total", job_id=job_id)
