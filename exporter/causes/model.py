"""What an explanation is made from, and what it says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rank_probe.wire.snapshot import THREAD_STATES

# In what a thread spends its time, see ThreadState.
RUNNING, CPU_QUEUE, DISK, SLEEP, LOCK, SOCKET, PIPE, GPU, BLOCKED = THREAD_STATES

# By their names in rank_probe.wire.figures.FIGURES; what is not known is absent.
Figures = Mapping[str, float]


class Quantiles(NamedTuple):
    """A figure of the late rank's peers.

    *lower_third* is the reference for figures that faults raise, *upper_third* for those that they
    lower. Both hold while over half of the peers are late too.
    """

    lower_third: float
    median: float
    upper_third: float


Peers = Mapping[str, Quantiles]


@dataclass(frozen=True, slots=True)
class ThreadState:
    """What the main thread, or a loader's worker, does in *stage*: a *share* (0 to 1) of its time.

    *state* is one of THREAD_STATES. *place* is the line of the user's code in which it is most of
    that time, or what it waits for (`/data (nfs)`); empty if that is not known.
    """

    stage: str
    state: str
    share: float
    place: str = ""


@dataclass(frozen=True, slots=True)
class Lateness:
    """A late rank, as the judge describes it: see rank_probe.judge.verdict.Late.

    *gpus* is its cost by stage: how much each stage contributes to the excess. *is_alone*: no other
    rank of its job is on its node, so whatever that node suffers from may delay this rank only.
    """

    stage: str
    kind: str
    ratio: float
    gpus: Mapping[str, float]
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a late rank since it became late.

    *states* are those of its main thread, *worker_states* those of its loader's busiest worker.
    *facts* say what a figure is about: keys are names of figures, values are texts for people
    (`too hot`, `nvme0n1`, `/data (nfs)`, `python3, PID 4711 of alice`).
    """

    figures: Figures
    states: Sequence[ThreadState] = ()
    worker_states: Sequence[ThreadState] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Guess:
    """A cause that does not account for half of the excess, with its *share* (0 to 1)."""

    cause: str
    detail: str
    share: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a rank is late.

    *share* (0 to 1) is how much of the excess it accounts for. *value* and *peers_value* are the
    rank's and its peers' values of *figure* (in FIGURES), None without one. *others* are the next
    best guesses, at most two. *first_action* has placeholders: PID, WORKER_PID, GPU, UUID, NODE.
    """

    cause: str
    detail: str
    share: float
    sentence: str
    first_action: str
    figure: str = ""
    value: float | None = None
    peers_value: float | None = None
    others: tuple[Guess, ...] = ()


UNKNOWN: Final = "unknown"
