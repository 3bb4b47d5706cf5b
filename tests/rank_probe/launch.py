"""Launch a job of real ranks and read what they pushed: the one late, the other waiting."""

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from tests.rank_probe.sink import Sink, listening

ROOT = Path(__file__).parents[2]
PACKAGE = "tests.rank_probe.jobs"

Ranks = dict[int, dict[str, Any]]

# Other loads of the machine hold a rank up by as much as what is planted, now and then; what the
# probe gets wrong is wrong each time.
ATTEMPTS = 3
RUN_AGAIN = "is run again"
RUN_SECONDS = 240
# torchrun kills workers that ignore it after 30 s.
END_SECONDS = 40


class Jobs(Mapping[str, Ranks]):
    """Cases that real ranks ran, each a job of its own: each rank's last snapshot, by case.

    *launch* runs the cases that it is given, one after the other.
    """

    def __init__(self, launch: Callable[..., Mapping[str, Ranks]], *cases: str) -> None:
        self._launch = launch
        self._warm_up = cases[:1]  # Pays for what is done once, as it did the first time.
        self._ranks = dict(launch(*cases))

    def check(self, case: str, check: Callable[[Ranks], None]) -> None:
        """Have *check* pass for *case*, which is run again where it does not."""
        for _ in range(ATTEMPTS - 1):
            try:
                return check(self[case])
            except AssertionError as error:
                ends = {
                    rank: [last.get(name) for name in ("steps", "finished", "push_failures")]
                    for rank, last in self[case].items()
                }
                print(f"{case} {RUN_AGAIN}: {error}; steps, end and failed pushes: {ends}")
                self._ranks[case] = self._launch(*dict.fromkeys((*self._warm_up, case)))[case]
        return check(self[case])

    def __getitem__(self, case: str) -> Ranks:
        return self._ranks[case]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)


def run(folder: Path, command: Sequence[str], **environment: str) -> dict[str, Ranks]:
    """Run Python with *command*; return each rank's last snapshot, by the name of its run."""
    own = {"OMP_NUM_THREADS": "1", "RANKSKEW_EXPORTER": f"unix:{folder}/s"}
    with listening(folder / "s") as sink:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=os.environ | own | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=RUN_SECONDS)
        finally:
            _end(process)
    assert process.returncode == 0, output[-4000:]
    return last_by_job(sink)


def leave() -> NoReturn:
    """End a job's process as it would end by itself, but for the interpreter's own end.

    What still holds a process group then keeps gloo's threads alive, and one that lets go of a
    tensor just then aborts the process (pytorch/pytorch#179291).
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


def _end(process: subprocess.Popen[str]) -> None:
    """Leave nothing behind: torchrun ends its workers, which have groups of their own, if asked.

    Ray's agents outlive a cluster that was killed.
    """
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_by_job(sink: Sink) -> dict[str, Ranks]:
    """Return each rank's last snapshot, by the name of its job."""
    last: dict[str, Ranks] = {}
    for snapshot in sink.snapshots:
        last.setdefault(snapshot["job_id"], {})[snapshot["rank"]] = snapshot
    return last


def is_late(rank: int, planted: Mapping[str, float]) -> Callable[[Ranks], None]:
    """Return a check that of two ranks *rank* was late by the *planted* seconds, by stage.

    It slept for them, which never takes less: a part that is counted elsewhere is missing. The
    other one is behind in each, unless it counts its wait there, and has waited for the sum. The
    comparison leaves room for what holds up the other rank, and for what only the first one does.
    """

    def check(ranks: Ranks) -> None:
        victim, late = ranks[1 - rank]["stage_seconds"], ranks[rank]["stage_seconds"]
        ahead = {name: late[name] - victim.get(name, 0.0) for name in late}

        assert {name for name in planted if late.get(name, 0.0) < planted[name]} == set(), late
        half = 0.5 * min(planted.values())
        extra = {name for name in ahead if name not in planted and ahead[name] > half}
        assert extra == set(), ahead
        assert {name for name in planted if ahead[name] < 0.5 * planted[name]} == set(), ahead
        assert victim["sync"] - late["sync"] > 0.5 * sum(planted.values()), ahead

    return check
