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

# Now and then other load on the machine delays a rank by as much as the planted delay. An error of
# the probe shows each time.
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
        self._warm_up = cases[:1]  # Pays the one-time costs, as in the first launch.
        self._ranks = dict(launch(*cases))

    def check(self, case: str, check: Callable[[Ranks], None]) -> None:
        """Run *check* on *case*; if it fails, run the case again, up to ATTEMPTS times in all."""
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
    """End a job's process as it would end by itself, but skip the interpreter's shutdown.

    Whatever still holds a process group keeps gloo's threads alive. A thread that releases a tensor
    during the shutdown aborts the process (pytorch/pytorch#179291).
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


def _end(process: subprocess.Popen[str]) -> None:
    """Leave no process behind: on SIGTERM, torchrun ends its workers, which have own groups.

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

    The late rank sleeps, which never takes less than planted: a stage with less was counted
    elsewhere in part. The other rank is behind in each stage, unless it counts its wait there, and
    has waited for the sum. The tolerances allow for other delays of the one and work of the other.
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
