"""Writes each step's stages to a file that `rankskew replay` reads: one CSV per rank."""

import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rank_probe.measure.steps import Steps, StepVector, Vectors
from rank_probe.process.identity import Identity
from rank_probe.wire.stages import STAGES

log = logging.getLogger("rank_probe")

COLUMNS = (
    *("job_id", "rank", "peer_group", "step", "time_s", "node"),
    *(f"{stage}_s" for stage in STAGES),
)
MAX_MIB = 1024

# A step's number, its time in seconds since the start, and its seconds per stage as in STAGES.
Row = tuple[int, float, Sequence[float]]


class Trace:
    """Writes steps from the start if RANK_PROBE_TRACE names a directory, else on demand.

    Without that directory, it writes on demand to this user's own directory under the system's
    temporary directory. Only for the pusher thread, except for `go_on_with`.
    """

    def __init__(self, environment: Mapping[str, str], steps: Steps) -> None:
        self._environment = dict(environment)
        self._steps = steps
        self._started = time.perf_counter_ns()
        self._file: TraceFile | None = None
        self._refused = False
        self._always = bool(environment.get("RANK_PROBE_TRACE"))
        self._kept: Vectors | None = steps.keep() if self._always else None

    def go_on_with(self, steps: Steps) -> None:
        """Switch to *steps*, those of the device clock, with times that start now."""
        if self._kept is not None:
            self._steps.forget(self._kept)
            self._kept = steps.keep()
        self._steps, self._started = steps, 0

    def write(self, me: Identity, *, on_demand: bool) -> None:
        """Append the steps since the last call, if a trace is wanted."""
        kept = self._kept
        if kept is not None and (file := self._open(me)) is not None:
            file.write(me, [self._row(vector) for vector in kept.take()])
        wanted = self._always or on_demand
        if wanted and kept is None:
            self._kept = self._steps.keep()
        elif kept is not None and not wanted:
            self._steps.forget(kept)
            self._kept = None

    def close(self) -> None:
        """Stop writing."""
        if self._file is not None:
            self._file.close()

    def _row(self, vector: StepVector) -> Row:
        seconds = [each / 1e9 for each in vector.nanoseconds]
        return vector.step, (vector.ended - self._started) / 1e9, seconds

    def _open(self, me: Identity) -> "TraceFile | None":
        if self._file is None and not self._refused:
            try:
                directory = self._environment.get("RANK_PROBE_TRACE") or own_directory()
            except OSError as error:
                self._refused = True
                log.warning("rank_probe writes no trace: %s", error)
                return None
            environment = self._environment | {"RANK_PROBE_TRACE": directory}
            self._file = TraceFile.from_environment(environment, me.job_id, me.attempt)
        return self._file


class TraceFile:
    """`<directory>/<job_id>-<attempt>-<rank>.csv`, opened at the first write; one thread only.

    Writes are not buffered, so a killed process loses only the rows not yet written, and leaves at
    most one partial row. Writing stops for good, with one log line, at the first error or when the
    file would exceed *max_mib*.
    """

    def __init__(self, directory: str, job_id: str, attempt: int, max_mib: float = MAX_MIB) -> None:
        self._directory = Path(directory)
        self._job_id = job_id
        self._attempt = attempt
        self._max_bytes = int(max_mib * 2**20)
        self._file: int | None = None
        self._bytes = 0
        self.stopped = False

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], job_id: str, attempt: int
    ) -> "TraceFile":
        """Return the file that RANK_PROBE_TRACE and RANK_PROBE_TRACE_MAX_MIB specify."""
        max_mib = environment.get("RANK_PROBE_TRACE_MAX_MIB", "") or str(MAX_MIB)
        if not max_mib.isdecimal():
            log.warning(
                "rank_probe: RANK_PROBE_TRACE_MAX_MIB is %r, not a whole number of MiB; using %d",
                max_mib,
                MAX_MIB,
            )
            max_mib = str(MAX_MIB)
        return cls(environment["RANK_PROBE_TRACE"], job_id, attempt, int(max_mib))

    def write(self, me: Identity, vectors: Sequence[Row]) -> None:
        """Append a row for each step in *vectors*, those since the last call; no OSError escapes.

        The node's cell is empty if no launcher names the node.
        """
        if self.stopped or not vectors:
            return
        head = f"{_cell(self._job_id)},{me.rank},{_cell(me.peer_group)}"
        node = _cell(me.node_rank)
        text = "".join(_row(head, node, *vector) for vector in vectors)
        try:
            self._append(me.rank, text)
        except OSError as error:
            self._stop(f"{error}; it stops")

    def close(self) -> None:
        """Close the file, for good."""
        self.stopped = True
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, rank: int, text: str) -> None:
        if self._file is None:
            self._open(rank)
        header = "" if self._bytes else ",".join(COLUMNS) + "\n"
        rows = (header + text).encode()
        if self._bytes + len(rows) > self._max_bytes:
            self._stop("it has reached RANK_PROBE_TRACE_MAX_MIB; recording stops")
            return
        self._write(rows)

    def _open(self, rank: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        job_id = re.sub(r"[^A-Za-z0-9._-]", "_", self._job_id)
        path = self._directory / f"{job_id}-{self._attempt}-{rank}.csv"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        # In a directory that others can write to, a FIFO could block us and a link lead elsewhere.
        flags |= os.O_NONBLOCK | os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o644)
        self._bytes = os.fstat(self._file).st_size

    def _write(self, rows: bytes) -> None:
        assert self._file is not None
        while rows:  # A nearly full disk takes a part; the next call reports the error.
            written = os.write(self._file, rows)
            self._bytes += written
            rows = rows[written:]

    def _stop(self, why: str) -> None:
        log.warning("rank_probe: the trace in %s: %s. Training continues.", self._directory, why)
        self.close()


def own_directory() -> str:
    """Return a directory that only this user may enter; OSError if its name is taken."""
    path = Path(tempfile.gettempdir(), f"rankskew-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise FileExistsError(f"{path} belongs to another user; set RANK_PROBE_TRACE")
    return str(path)


def _row(head: str, node: str, step: int, time_seconds: float, stages: Sequence[float]) -> str:
    cells = ",".join(f"{seconds:.7g}" for seconds in stages)
    return f"{head},{step},{time_seconds:.3f},{node},{cells}\n"


def _cell(text: str) -> str:
    """Return *text* as a CSV cell; a line break, which no row may contain, becomes a space."""
    text = " ".join(text.splitlines())
    return '"' + text.replace('"', '""') + '"' if '"' in text or "," in text else text
