"""What one user's process puts in the exporter's way changes nothing for the others."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

from rank_probe.process.identity import NAMESPACE_FILE
from rank_probe.wire.snapshot import SNAPSHOT_PATH
from tests import nvmlstub
from tests.e2e.test_isolation import Person
from tests.exporter.fake_proc import torchrun
from tests.exporter.running import RunningExporter, wait_until
from tests.exporter.snapshots import snapshot

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else"),
]

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
def directory() -> Iterator[Path]:
    """The node's directories; not in pytest's own, which let nobody else in."""
    found = Path(tempfile.mkdtemp(prefix="rankskew-hostile-"))
    found.chmod(0o755)
    (found / "run").mkdir(mode=0o755)
    yield found
    shutil.rmtree(found)


def push(person: Person, socket: str, **changes: object) -> None:
    body = asdict(snapshot(pid=person.do("pid"), world_size=2, **changes))
    assert person.do("post", socket, SNAPSHOT_PATH, body) == [200, {}]


def most_memory(exporter: RunningExporter) -> int:
    """Return the most bytes that the exporter has ever had in memory."""
    status = Path(f"/proc/{exporter.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def test_file_below_a_root_of_ones_own_is_not_opened(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of a process that reports, nor of one on a GPU; both are looked at before others'."""
    secret = directory / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    gpus = nvmlstub.environment(nvmlstub.build(directory), len(TRAPS) + 1)
    for name, value in (gpus | {"STUB_PROCESSES": str(directory / "processes")}).items():
        monkeypatch.setenv(name, value)
    socket = directory / "run" / "e.sock"
    with ExitStack() as stack:

        def job(who: str, job_id: str, root: Path, **variables: str) -> list[Person]:
            variables |= {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": job_id}
            ranks = [Person(who, root, os.environ | torchrun(r, **variables)) for r in (0, 1)]
            for rank in ranks:
                stack.callback(rank.end)
            return ranks

        jobs = {}
        for name, trap in TRAPS.items():
            file = directory / name / NAMESPACE_FILE.relative_to("/")
            file.parent.mkdir(parents=True)
            (directory / name / "run").mkdir(exist_ok=True)
            trap(file, secret)
            jobs[name] = job("jailed 1001", name, directory / name, KUBERNETES_SERVICE_HOST="10.1")
        jobs["others"] = job("user 1002", "others", directory)
        lines = [f"{gpu} {ranks[0].do('pid')} 1\n" for gpu, ranks in enumerate(jobs.values())]
        (directory / "processes").write_text("".join(lines))
        exporter = AsInKubernetes(socket, "--series.detail=all")
        stack.callback(exporter.kill)
        before = most_memory(exporter)
        for name in TRAPS:
            (directory / name / "run" / "e.sock").hardlink_to(socket)
            push(jobs[name][1], "/run/e.sock", job_id=name, rank=1)
        push(jobs["others"][1], str(socket), job_id="others", rank=1)
        wait_until(lambda: is_shown(exporter, "others"))

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


def test_lock_on_the_sockets_directory_holds_nothing_up(directory: Path) -> None:
    """Neither the start, nor that the socket is made again after somebody removed it."""
    socket = directory / "run" / "e.sock"
    with ExitStack() as stack:
        hostile = Person("user 1001", directory)
        stack.callback(hostile.end)
        assert hostile.do("lock", str(socket.parent)) == "locked"
        exporter = AsInKubernetes(socket)
        stack.callback(exporter.kill)
        socket.unlink()
        wait_until(socket.exists)

        assert exporter.push(snapshot().to_json()) == (200, {})
        assert 'rankskew_steps_total{job_id="llama"' in exporter.metrics()
