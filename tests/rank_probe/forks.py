"""Ranks that are forks of one process with torch imported: 0.03 s of CPU each instead of 3.4.

Not for tests of how a rank starts: under torchrun, by multiprocessing, before torch is imported.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from devstack.process import wait_for
from tests.rank_probe.launch import END_SECONDS, ROOT, RUN_SECONDS, Ranks, last_by_job
from tests.rank_probe.sink import listening


def serving() -> Any:
    """Return a store at which ranks can meet."""
    from torch._C._distributed_c10d import TCPStore

    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


class Fork(NamedTuple):
    """A process of a Zygote; what it prints is in the file *output*."""

    pid: int
    output: Path
    zygote: "Zygote"

    def wait(self, seconds: float = RUN_SECONDS) -> int:
        """Return its exit status, once it has ended."""
        until = time.monotonic() + seconds
        while (status := self.zygote.ask(ended=self.pid)) is None:
            assert time.monotonic() < until, self.output.read_text()[-4000:]
            time.sleep(0.02)
        return int(status)


class Zygote:
    """The process that is forked."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.rank_probe.forks"],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> Any:
        """Return the answer to *request*."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        """End it, and what is left of its forks."""
        self._process.communicate()

    def start(self, output: Path, module: str, *arguments: str, **environment: str) -> Fork:
        """Run *module* with *arguments* in a fork, as `python -m` would."""
        known = os.environ | {"OMP_NUM_THREADS": "1"} | environment
        pid = self.ask(run=[module, *arguments], environment=known, output=str(output))
        return Fork(pid, output, self)

    @contextmanager
    def ranks(
        self,
        folder: Path,
        module: str,
        *arguments: str,
        ranks: int,
        server: Any = None,
        **environment: str,
    ) -> Iterator[Sequence[Fork]]:
        """Run *module* on gloo ranks while the block runs; the test holds their store."""
        server = server or serving()
        meeting = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(server.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "WORLD_SIZE": str(ranks),
        }
        started = [
            self.start(
                folder / f"output-{rank}",
                module,
                *arguments,
                **meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | environment,
            )
            for rank in range(ranks)
        ]
        try:
            yield started
        finally:
            for fork in started:
                with suppress(ProcessLookupError):
                    os.killpg(fork.pid, signal.SIGKILL)

    def run(
        self, folder: Path, module: str, *arguments: str, ranks: int = 2, **environment: str
    ) -> dict[str, Ranks]:
        """Run *module* on gloo ranks; return each one's last snapshot, by the job's name."""
        with listening(folder / "s") as sink:
            told = {"RANKSKEW_EXPORTER": sink.endpoint} | environment
            with self.ranks(folder, module, *arguments, ranks=ranks, **told) as forks:
                for fork in forks:
                    assert fork.wait() == 0, fork.output.read_text()[-4000:]
        return last_by_job(sink)

    def launch(
        self, folder: Path, module: str, *arguments: str, **environment: str
    ) -> dict[str, Ranks]:
        """Run *module*, which starts real ranks; return what `run` does."""
        with listening(folder / "s") as sink:
            told = {"RANKSKEW_EXPORTER": sink.endpoint} | environment
            launcher = self.start(folder / "output", module, *arguments, **told)
            try:
                assert launcher.wait() == 0, launcher.output.read_text()[-4000:]
                # Lightning's launcher, which is a rank itself, does not wait for the others.
                wait_for(lambda: _is_empty(launcher.pid) or None, END_SECONDS)
            except BaseException:
                with suppress(ProcessLookupError):
                    os.kill(launcher.pid, signal.SIGTERM)  # So that it ends its ranks.
                raise
        return last_by_job(sink)


def _is_empty(group: int) -> bool:
    """Return whether the process *group* has ended."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def _become(run: Sequence[str], environment: dict[str, str], output: str) -> NoReturn:
    """Run a module in this fork, and end as a process of its own would."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    to = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, opened in ((0, os.open(os.devnull, os.O_RDONLY)), (1, to), (2, to)):
        os.dup2(opened, descriptor)
    sys.argv = [run[0], *run[1:]]
    status = 1
    try:
        runpy.run_module(run[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as Python does at the end of a script
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


def _serve() -> None:
    """Import what ranks need, then fork one for each request on standard input."""
    gc.disable()
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel  # noqa: F401 - for the forks

    assert "rank_probe" not in sys.modules
    assert threading.active_count() == 1
    gc.freeze()
    gc.enable()
    forks: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            forks.discard(pid)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                _become(**request)
            forks.add(answer)
        print(json.dumps(answer), flush=True)
    for pid in forks:
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    _serve()
