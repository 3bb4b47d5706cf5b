"""The simulated jobs, and what Prometheus says of one beside the reference accounting."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from devstack.parts import QueryResult
from rankskew.accounting.run import Account, account, kinds
from tests.alerts.jobs import Fault, Job, Step
from tests.rank_probe.judged import vectors

RANKS: Final = (2, 4, 8, 16, 32, 64)
INTERVAL_SECONDS: Final = 15.0
ASKED_SECONDS: Final = (225.0, 240.0, 255.0)
# What a rule has seen at a query: a minute that ended some scrapes ago.
WINDOW_SECONDS: Final = (90.0, 15.0)
# Of the lost GPUs, or a hundredth of the job's, whichever is more. Means cannot separate the cost
# of the late rank from that of everyone's noise.
TOLERANCE: Final = {"join": 0.1, "block": 0.15}
SMALL: Final = 0.01
SOURCE_OF: Final = {"join": "join", "node": "block"}
# All that is lost, and what late ranks cost, which is all that a node without a join knows.
KINDS: Final = ("all", "persistent")
JUDGED_KINDS: Final = (*KINDS, "rotating", "group", "common")


@dataclass(frozen=True)
class Case:
    """A job, and the rank and stage that should be named in it, if any."""

    fault: str
    job: Job
    late: tuple[int, str] | None = None

    @property
    def source(self) -> str:
        """The source that should report the job."""
        return "join" if self.job.join else "block"

    @property
    def name(self) -> str:
        """Its job_id."""
        return f"{self.fault}-{self.job.ranks}-{self.source}"


def cases() -> Iterator[Case]:
    """Yield the simulated jobs."""
    seconds = ASKED_SECONDS[-1] + INTERVAL_SECONDS
    for ranks in RANKS:
        for join in (True, False):
            late = (ranks // 3, "forward")
            healthy = Job(ranks=ranks, seed=ranks, seconds=seconds, join=join)
            yield Case("straggler", replace(healthy, faults=(Fault(*late, 0.25),)), late)
            yield Case("rotating", replace(healthy, faults=(Fault(None, "data", 0.5),)))
            yield Case("none", healthy)
            if ranks > 2:
                yield Case("groups", replace(healthy, group_work=(1.0, 1.3)))


def reference(case: Case, steps: Sequence[Step], asked_seconds: float) -> Account:
    """Return the account of what the rules can have seen at a query."""
    first, last = (asked_seconds - ago for ago in WINDOW_SECONDS)
    groups = {rank: str(case.job.group(rank)) for rank in range(case.job.ranks)}
    seen = [step for step in steps if first < step.end_seconds <= last]
    return account((vectors(case.job, step) for step in seen), groups)


def compare(
    case: Case, steps: Sequence[Step], said: Mapping[float, Mapping[str, list[QueryResult]]]
) -> dict[str, Any]:
    """Return a row: what was named, and by how much each of KINDS differs from the reference.

    The difference is relative to the loss, and is the median over the queries. *wrong* lists
    everything that is not as it should be.
    """
    named: set[tuple[int, str]] = set()
    sources: set[str] = set()
    differ: dict[str, list[float]] = {}
    for asked, answer in said.items():
        mine = {
            what: [(one.labels, one.value) for one in found if one.labels["job_id"] == case.name]
            for what, found in answer.items()
        }
        named |= {(int(labels["rank"]), labels["stage"]) for labels, _ in mine["named"]}
        sources |= {SOURCE_OF[labels["judge"]] for labels, _ in mine["judge"]}
        true = reference(case, steps, asked)
        right = kinds(true, {case.late[0]} if case.late else ())
        values = {labels["kind"]: value for labels, value in mine["all"] + mine["kinds"]}
        for kind in JUDGED_KINDS if case.source == "join" else KINDS:
            expected = right.lost if kind == "all" else getattr(right, kind)
            error = abs(values.get(kind, 0.0) - expected / true.seconds)
            scale = max(right.lost / true.seconds, SMALL * case.job.ranks)
            differ.setdefault(kind, []).append(error / scale)
    medians = {kind: statistics.median(errors) for kind, errors in differ.items()}
    who = " ".join(f"{rank}:{stage}" for rank, stage in sorted(named))
    is_right = named == ({case.late} if case.late else set())
    known = JUDGED_KINDS if case.source == "join" else ("persistent",)
    wrong = [kind for kind in known if medians[kind] > TOLERANCE[case.source]]
    wrong += [] if is_right else [f"named {who or 'nobody'}"]
    wrong += [] if sources == {case.source} else [f"{' '.join(sources) or 'nobody'} spoke"]
    return {
        "fault": case.fault,
        "ranks": case.job.ranks,
        "source": case.source,
        "right": is_right,
        "named": who,
        "GPUs lost": right.lost / true.seconds,
        **{kind: medians[kind] for kind in KINDS},
        "wrong": ", ".join(wrong),
    }
