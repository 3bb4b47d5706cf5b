"""Write each step's stages to a file that `rankskew replay` reads: one CSV for each rank."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rank_probe.stages import STAGES

log = logging.getLogger("rank_probe")

COLUMNS = ("job_id", "rank", "peer_group", "step", "time_s", *(f"{stage}_s" for stage in STAGES))
MAX_MIB = 1024

# A step's number, its time in seconds since the start, and its seconds by stage as in STAGES.
StepVector = tuple[int, float, Sequence[float | None]]


class TraceFile:
    """`<directory>/<job_id>-<attempt>-<rank>.csv`, opened at the first write; one thread only.

    Each write reaches the system at once, so a process that is killed loses what was not written
    yet, and at most half a row. It stops for good, with one log line, at the first error and when
    the file would pass *max_mib*.
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
    ) -> "TraceFile | None":
        """Return the file that RANK_PROBE_TRACE and RANK_PROBE_TRACE_MAX_MIB ask for, or None."""
        directory = environment.get("RANK_PROBE_TRACE", "")
        if not directory:
            return None
        max_mib = environment.get("RANK_PROBE_TRACE_MAX_MIB", "") or str(MAX_MIB)
        if not max_mib.isdecimal():
            log.warning(
                "rank_probe: RANK_PROBE_TRACE_MAX_MIB is %r, not a whole number of MiB; using %d",
                max_mib,
                MAX_MIB,
            )
            max_mib = str(MAX_MIB)
        return cls(directory, job_id, attempt, int(max_mib))

    def write(self, rank: int, peer_group: str, vectors: Sequence[StepVector]) -> None:
        """Append a row for each step in *vectors*: those since the last call. Never raises OSError.

        A stage that is None was not measured, and its cell stays empty.
        """
        if self.stopped or not vectors:
            return
        head = f"{_cell(self._job_id)},{rank},{_cell(peer_group)}"
        text = "".join(_row(head, *vector) for vector in vectors)
        try:
            self._append(rank, text)
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
            self._stop("it has reached RANK_PROBE_TRACE_MAX_MIB; it stops")
            return
        self._write(rows)

    def _open(self, rank: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        job_id = re.sub(r"[^A-Za-z0-9._-]", "_", self._job_id)
        path = self._directory / f"{job_id}-{self._attempt}-{rank}.csv"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644)
        self._bytes = os.fstat(self._file).st_size

    def _write(self, rows: bytes) -> None:
        assert self._file is not None
        while rows:  # A disk that is nearly full takes a part; the next call says why.
            written = os.write(self._file, rows)
            self._bytes += written
            rows = rows[written:]

    def _stop(self, why: str) -> None:
        log.warning("rank_probe: the trace in %s: %s. Training goes on.", self._directory, why)
        self.close()


def _row(head: str, step: int, time_seconds: float, stages: Sequence[float | None]) -> str:
    cells = ",".join("" if seconds is None else f"{seconds:.7g}" for seconds in stages)
    return f"{head},{step},{time_seconds:.3f},{cells}\n"


def _cell(text: str) -> str:
    """Return *text* as CSV wants it; a line break, which no row may hold, becomes a space."""
    text = " ".join(text.splitlines())
    return '"' + text.replace('"', '""') + '"' if '"' in text or "," in text else text
