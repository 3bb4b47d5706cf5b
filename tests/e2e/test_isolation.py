"""No other user of the node, nor root in another container, can tamper with somebody's job.

Obstacles that one user puts in the exporter's way change nothing for the others.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from exporter.operator.orders import CONTROL_PATH
from rank_probe.process.identity import NAMESPACE_FILE
from rank_probe.wire.snapshot import SNAPSHOT_PATH
from tests import nvmlstub
from tests.exporter.fake_proc import torchrun
from tests.exporter.running import RunningExporter, wait_until
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
        for part in (self.socket.parent, self.operator.parent, self.token.parent):
            part.mkdir(mode=0o755, exist_ok=True)
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
        status, answer = person.do("post", f"unix:{self.socket}", SNAPSHOT_PATH, body)
        return status, answer.get("error", answer)

    def turn_off(self, person: Person, where: Path) -> Any:
        """Turn off the probe of a job of the owner's at the socket *where*."""
        return person.do("post", f"unix:{where}", CONTROL_PATH, {"job_id": "quiet", "level": "off"})

    def has(self, name: str, value: object = "", **labels: object) -> bool:
        """Whether the page has a series of JOB with these *labels*, among others, and *value*."""
        return any(
            line.startswith(f"{name}{{")
            and line.endswith(f" {value}" if value else "")
            and all(f'{key}="{text}"' in line for key, text in ({"job_id": JOB} | labels).items())
            for line in self.exporter.metrics().splitlines()
        )


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder of a node; not in pytest's own, which let nobody else in."""
    with tempfile.TemporaryDirectory(prefix="rankskew-isolation-") as name:
        found = Path(name)
        found.chmod(0o755)
        (found / "run").mkdir(mode=0o755)
        yield found


@pytest.fixture(scope="module", params=PAIRS, ids=" and ".join)
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node on which JOB runs."""
    with shared_folder() as folder, ExitStack() as stack:
        running = Node(folder, *request.param)
        stack.callback(running.end)
        assert running.push(running.owner) == (200, {})
        yield running


def test_nobody_else_reports_a_rank(node: Node) -> None:
    """Nobody else can push a rank's state, a newer process of the rank, or its end."""
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
    """Another user can add no rank; one added by the same user's container decides nothing."""
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
    status, answer = node.other.do("post", f"http://127.0.0.1:{port}", SNAPSHOT_PATH, asdict(body))
    assert (status, "wants the token" in answer["error"]) == (401, True)

    shown = node.exporter.push_over_tcp(port, body.to_json(), Authorization="Bearer a-secret")
    assert shown == (200, {})


def test_nobody_fills_the_node(node: Node) -> None:
    """A user who claims every rank and job leaves others their share, for current and new jobs."""
    answers = [node.push(node.other, job_id=f"flood-{n}", rank=n % 2) for n in range(2 * RANKS)]
    refused = [reason for status, reason in answers if status == 429]
    assert refused
    assert all("This node already has" in reason for reason in refused)

    for job_id in (JOB, "next"):
        assert node.push(node.owner, job_id=job_id) == (200, {})
        assert node.has("rankskew_steps_total", job_id=job_id)


# ---- What one user puts in the exporter's way ----------------------------------------------------


# A file of another one's that only the exporter may read; a valid name of a namespace.
SECRET = "0a1b2c3d4e5f"
SPARSE_BYTES = 1 << 28
# Far more than two ranks take.
MOST_BYTES = 1 << 26
TRAPS: dict[str, Callable[[Path, Path], object]] = {
    "pipe": lambda file, _: os.mkfifo(file),
    "link": lambda file, secret: file.symlink_to(secret),
    "sparse file": lambda file, _: file.touch() or os.truncate(file, SPARSE_BYTES),  # type: ignore[func-returns-value]
}


class AsInKubernetes(RunningExporter):
    """The exporter with the rights that the Helm chart gives it, seeing all processes."""

    COMMAND = (  # type: ignore[assignment, misc] # Final in the base
        *("setpriv", "--inh-caps=-all", "--bounding-set=-all,+dac_read_search,+sys_ptrace"),
        *(sys.executable, "-m", "rankskew", "exporter"),
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    """The folder of another node."""
    with shared_folder() as found:
        yield found


def push(person: Person, socket: str, **changes: object) -> None:
    body = asdict(snapshot(pid=person.do("pid"), world_size=2, **changes))
    assert person.do("post", f"unix:{socket}", SNAPSHOT_PATH, body) == [200, {}]


def most_memory(exporter: RunningExporter) -> int:
    """Return the most bytes that the exporter has ever had in memory."""
    status = Path(f"/proc/{exporter.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def test_file_below_a_root_of_ones_own_is_not_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter opens no such file, neither of a reporting process nor of one on a GPU."""
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    gpus = nvmlstub.environment(nvmlstub.build(folder), len(TRAPS) + 1)
    for name, value in (gpus | {"STUB_PROCESSES": str(folder / "processes")}).items():
        monkeypatch.setenv(name, value)
    socket = folder / "run" / "e.sock"
    with ExitStack() as stack:

        def job(who: str, job_id: str, root: Path, **variables: str) -> list[Person]:
            variables |= {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": job_id}
            ranks = [Person(who, root, os.environ | torchrun(r, **variables)) for r in (0, 1)]
            for rank in ranks:
                stack.callback(rank.end)
            return ranks

        jobs = {}
        for name, trap in TRAPS.items():
            file = folder / name / NAMESPACE_FILE.relative_to("/")
            file.parent.mkdir(parents=True)
            (folder / name / "run").mkdir(exist_ok=True)
            trap(file, secret)
            jobs[name] = job("jailed 1001", name, folder / name, KUBERNETES_SERVICE_HOST="10.1")
        jobs["others"] = job("user 1002", "others", folder)
        lines = [f"{gpu} {ranks[0].do('pid')} 1\n" for gpu, ranks in enumerate(jobs.values())]
        (folder / "processes").write_text("".join(lines))
        exporter = AsInKubernetes(socket, "--series.detail=all")
        stack.callback(exporter.kill)
        before = most_memory(exporter)
        for name in TRAPS:
            (folder / name / "run" / "e.sock").hardlink_to(socket)
            push(jobs[name][1], "/run/e.sock", job_id=name, rank=1)
        push(jobs["others"][1], str(socket), job_id="others", rank=1)
        wait_until(lambda: is_shown(exporter, "others"))  # The traps are looked at first.

        assert SECRET not in exporter.metrics()
        assert all(is_shown(exporter, name) for name in TRAPS)
        assert most_memory(exporter) - before < MOST_BYTES


def is_shown(exporter: RunningExporter, job_id: str) -> bool:
    """Whether rank 0 is found on its GPU, and what rank 1 costs its host."""
    lines = [line for line in exporter.metrics().splitlines() if f'job_id="{job_id}"' in line]
    wanted = {"rankskew_gpu_rank_info": "0", "rankskew_rank_cpu_seconds_total": "1"}
    return all(
        any(line.startswith(name) and f'rank="{rank}"' in line for line in lines)
        for name, rank in wanted.items()
    )


def test_lock_on_the_sockets_directory_holds_nothing_up(folder: Path) -> None:
    """Somebody's lock delays neither the start nor the re-creation of a removed socket."""
    socket = folder / "run" / "e.sock"
    with ExitStack() as stack:
        hostile = Person("user 1001", folder)
        stack.callback(hostile.end)
        assert hostile.do("lock", str(socket.parent)) == "locked"
        exporter = AsInKubernetes(socket)
        stack.callback(exporter.kill)
        socket.unlink()
        wait_until(socket.exists)

        assert exporter.push(snapshot().to_json()) == (200, {})
        assert 'rankskew_steps_total{job_id="llama"' in exporter.metrics()
