"""What a rank reports to its node's exporter: its whole cumulative state, never a difference.

Losing, repeating or reordering a snapshot is harmless, because each one replaces the last.
"""

import json
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final

SCHEMA: Final = 1

# Where to post snapshots, on the exporter's ingest listener.
SNAPSHOT_PATH: Final = "/v1/snapshots"
# Where to ask what would become of one.
DRY_RUN_PATH: Final = "/v1/snapshots/dry-run"

RANK_INFO_LABELS: Final = (
    "local_rank",
    "node_rank",
    "world_size",
    "gpu_uuid",
    "dp",
    "tp",
    "pp",
    "clock",
    "attempt",
    "source",
    "level",
)
RUNTIME_INFO_LABELS: Final = (
    "torch",
    "cuda",
    "nccl",
    "python",
    "backend",
    "probe",
    "driver",
    "env_hash",
    "device_count",
)

# The events that a process reports with their times: those of its life, and two that recur in it.
# init: process start to the call of init_process_group; rendezvous: that call; first_step: from its
# end to the first whole step; end: the first step to a clean end.
LIFECYCLE_EVENTS: Final = ("init", "rendezvous", "first_step", "checkpoint", "evaluation", "end")
# How many of the last ones it reports: more than can happen between two pushes.
MOST_EVENTS: Final = 8

# What the operator may order at any time: nothing, the stages, or a trace of every step too.
LEVELS: Final = ("off", "stages", "detail")
LEVEL_OFF: Final = "off"
LEVEL_DETAIL: Final = "detail"
DEFAULT_LEVEL: Final = "stages"

# How many lines of code a late rank reports.
MOST_LATE_LINES: Final = 5

LONGEST_TEXT: Final = 1024

# How many sentences on what its torch lacks a rank reports.
MOST_LIMITATIONS: Final = 16

# In what a thread spends its time. cpu_queue: ready, but without a CPU. disk: a file or its file
# system. sleep: for a given time. lock: also Python's own, while another thread has it. pipe: also
# the one from a loader's workers. gpu: until it is done. blocked: in anything else.
THREAD_STATES: Final = (
    "running",
    "cpu_queue",
    "disk",
    "sleep",
    "lock",
    "socket",
    "pipe",
    "gpu",
    "blocked",
)
# How the place of a `lock` begins that is Python's own, and which other thread of its process has.
OF_THREAD: Final = "thread `"
# How many shares of its time a late rank reports.
MOST_THREAD_STATES: Final = 8


@dataclass(slots=True)  # Not frozen, which would triple the time to make one.
class Snapshot:
    """State of one rank since its process started the probe.

    Times are seconds; timestamps are Unix seconds on the node's own clock. Counters are committed
    at the release, so they cover only whole steps; *stage_seconds* has a key only for stages that
    occurred. *stage* is the current stage, *stage_elapsed_seconds* the time in it so far.
    *stage_host_seconds* has the stages on the host's clock, only if *stage_seconds* is on the
    device's; *dropped_steps* counts steps with discarded device times. *level* is one of LEVELS.
    None means "no reading".

    The fields of the per-step join change together. *wait_caused_seconds*: GPU-seconds that others
    waited because of it, by stage. *group_wait_seconds*: how long it waited for a
    heavier peer group. *joined_seconds*: its own wall time of the joined steps. *join_coverage* (0
    to 1): their share of the steps offered in the last minute. *verdict*: that of rank 0's judge on
    the whole job, in the format of judge.verdict, read *verdict_age_seconds* ago; None
    without a join.

    For jobs without a join: *block_seconds* has the mean step by stage, over the rank's last whole
    block of *block_steps* steps. Blocks end at multiples of a power of two, the same on all ranks.

    *late_lines*, only while the rank is late or stuck: the user's lines in which its stack was
    found most often, at most MOST_LATE_LINES, those of the late stage first. Each has a *stage*,
    a *place* such as `Corpus.__next__ (corpus.py:41)` and its *share* (0 to 1) of the samples of
    that stage.

    *thread_states*, also only then: in what its thread spends its time, by stage, at most
    MOST_THREAD_STATES, those of the late stage first. Each has a *stage*, a *state* of
    THREAD_STATES, its *share* (0 to 1) of the time in that stage, and a *place*: the user's line in
    which it most often is in that state, or what it waits for (`/data (nfs)`, or OF_THREAD and the
    rest of its name and line); empty if unknown.
    *peer_figures*, also only then: by name in FIGURES the lower third, the median and the upper
    third of its peers that are not late. *loader*, also only then: the method of the dataset that
    the loader's workers run, such as `Corpus.__getitem__ (corpus.py:30)`; empty without workers.
    These three are left out of the JSON while they are empty.

    *no_join* is why the process group cannot be joined, one of wire.no_join; empty if nothing is in
    the way. *group_formed_timestamp_seconds* is when the group was formed, if not by processes that
    all were new: ranks that were silent before then are not of it. *limitations*: sentences on what
    the probe does without names that the rank's torch lacks, at most MOST_LIMITATIONS. All are left
    out, too.

    *lifecycle_events*: the last of LIFECYCLE_EVENTS, at most MOST_EVENTS, each with its *number* in
    this process, from 1 on, *event*, *began_timestamp_seconds* and *seconds*, None while it lasts.
    """

    job_id: str
    peer_group: str
    rank: int
    world_size: int
    attempt: int
    pid: int
    started_timestamp_seconds: float
    sequence: int
    heartbeat_timestamp_seconds: float
    steps: int
    stage_seconds: dict[str, float]
    busy_seconds: float
    stage: str
    stage_elapsed_seconds: float
    finished: bool = False
    last_step_timestamp_seconds: float | None = None
    probe_errors: int = 0
    push_failures: int = 0
    rank_info: dict[str, str] = field(default_factory=dict)
    runtime_info: dict[str, str] = field(default_factory=dict)
    stage_host_seconds: dict[str, float] = field(default_factory=dict)
    dropped_steps: int = 0
    samples: int | None = None
    tokens: int | None = None
    padding_tokens: int | None = None
    gc_pause_seconds: float | None = None
    cuda_memory_allocated_bytes: int | None = None
    cuda_alloc_retries: int | None = None
    level: str = DEFAULT_LEVEL
    wait_caused_seconds: dict[str, float] = field(default_factory=dict)
    group_wait_seconds: float | None = None
    joined_seconds: float | None = None
    join_coverage: float | None = None
    verdict: dict[str, Any] | None = None
    verdict_age_seconds: float | None = None
    block_steps: int = 0
    block_seconds: dict[str, float] = field(default_factory=dict)
    late_lines: list[dict[str, Any]] = field(default_factory=list)
    lifecycle_events: list[dict[str, Any]] = field(default_factory=list)
    thread_states: list[dict[str, Any]] = field(default_factory=list)
    peer_figures: dict[str, list[float]] = field(default_factory=dict)
    loader: str = ""
    limitations: list[str] = field(default_factory=list)
    no_join: str = ""
    group_formed_timestamp_seconds: float | None = None
    schema: int = SCHEMA

    def to_json(self) -> bytes:
        """Return the body of a push, UTF-8 JSON."""
        return SnapshotEncoder().encode(self)


class AsJson(dict[str, Any]):
    """A JSON object with the *text* that it was read from: it need not be encoded again."""

    def __init__(self, text: bytes) -> None:
        super().__init__(json.loads(text))
        self.text = text.decode()


class SnapshotEncoder:
    """Encodes one snapshot of a rank after the other, as in `Snapshot.to_json`; for one thread.

    What seldom changes is half of the work, and is encoded again only when it has changed.
    """

    def __init__(self) -> None:
        self._seldom: tuple[Any, ...] = ()
        self._encoded = ""

    def encode(self, snapshot: Snapshot) -> bytes:
        """Return the body of a push."""
        seldom = _values_that_seldom_change(snapshot)
        if seldom != self._seldom:
            self._seldom, self._encoded = seldom, _encode(_said(seldom))[:-1]
        often = dict(zip(_OFTEN, _values_that_often_change(snapshot), strict=True))
        if isinstance(said := snapshot.verdict, AsJson):
            return f'{self._encoded},"verdict":{said.text},{_encode(often)[1:]}'.encode()
        return f"{self._encoded},{_encode(often | {'verdict': said})[1:]}".encode()


_OFTEN: Final = (
    "sequence",
    "heartbeat_timestamp_seconds",
    "steps",
    "stage_seconds",
    "busy_seconds",
    "stage",
    "stage_elapsed_seconds",
    "last_step_timestamp_seconds",
    "stage_host_seconds",
    "samples",
    "tokens",
    "padding_tokens",
    "gc_pause_seconds",
    "cuda_memory_allocated_bytes",
    "wait_caused_seconds",
    "group_wait_seconds",
    "joined_seconds",
    "verdict_age_seconds",
)
_SELDOM: Final = tuple(
    each.name for each in fields(Snapshot) if each.name not in (*_OFTEN, "verdict")
)
_LEFT_OUT: Final = (
    *("thread_states", "peer_figures", "loader"),
    *("no_join", "group_formed_timestamp_seconds", "limitations"),
)
# Not dataclasses.asdict: its deep copy costs more than the encoding.
_values_that_often_change: Final = attrgetter(*_OFTEN)
_values_that_seldom_change: Final = attrgetter(*_SELDOM)
_encode: Final = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, check_circular=False
).encode


def _said(seldom: tuple[Any, ...]) -> dict[str, Any]:
    """Return what is said of the values that *seldom* change, by name."""
    pairs = zip(_SELDOM, seldom, strict=True)
    return {name: value for name, value in pairs if value or name not in _LEFT_OUT}
