"""A launch that is audited, and what a check finds in it: a status, the reason, what to do."""

import enum
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from rank_probe.audit.facts import Facts

Key = TypeVar("Key", bound=Hashable)

# Ranks or nodes named in one sentence.
MOST_NAMED: Final = 8
# Findings shown for one check: a mistake in a job script shows on a thousand nodes.
MOST_FINDINGS: Final = 8


@dataclass(frozen=True, slots=True)
class Launch:
    """The facts of at least one rank, ascending by rank.

    *missing* ranks posted nothing readable. *cannot_compare* says why ranks cannot be compared; it
    is empty if they can. *alone* means that this process is not a rank: its facts stand for
    *ranks_here* ranks of its node, one for each GPU.
    """

    facts: Sequence[Facts]
    world_size: int = 1
    missing: tuple[int, ...] = ()
    cannot_compare: str = ""
    alone: bool = False
    ranks_here: int = 1

    def machines(self) -> list[list[Facts]]:
        """Return the ranks of each machine, in the order of their first ranks."""
        return list(grouped(self.facts, lambda facts: facts.machine).values())


def grouped(facts: Sequence[Facts], key: Callable[[Facts], Key]) -> dict[Key, list[Facts]]:
    """Return *facts* by *key*, in the order of the first of each."""
    groups: dict[Key, list[Facts]] = {}
    for one in facts:
        groups.setdefault(key(one), []).append(one)
    return groups


def majority(values: Mapping[int, Key]) -> Key | None:
    """Return the value that more than half of the ranks have; None if there is none."""
    value, times = Counter(values.values()).most_common(1)[0]
    return value if 2 * times > len(values) else None


class AuditStatus(enum.StrEnum):
    """The outcomes of a check, the worst first."""

    FAIL = "fail"
    WARN = "warn"
    NOT_CHECKED = "not_checked"
    OK = "ok"


ORDER: Final = tuple(AuditStatus)


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A *reason*, which says what is so; for FAIL and WARN, an *advice*, which says what to do."""

    status: AuditStatus
    reason: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the check called *check* found, the worst finding first; *more* are left out."""

    check: str
    findings: tuple[AuditFinding, ...]
    more: int = 0

    @property
    def status(self) -> AuditStatus:
        """The worst status of its findings."""
        return self.findings[0].status


def outcome(check: str, findings: Iterable[AuditFinding]) -> Outcome:
    """Return the outcome of *check*; if it found problems, all other findings are left out."""
    found = sorted(findings, key=lambda finding: ORDER.index(finding.status))
    troubles = [one for one in found if one.status in (AuditStatus.FAIL, AuditStatus.WARN)]
    shown = tuple((troubles or found[:1])[:MOST_FINDINGS])
    return Outcome(check, shown, max(0, len(troubles) - len(shown)))


# Each takes the reason; the first two also take the advice.
fail: Final = partial(AuditFinding, AuditStatus.FAIL)  # It will break or slow the job.
warn: Final = partial(AuditFinding, AuditStatus.WARN)  # It may slow the job.
not_checked: Final = partial(AuditFinding, AuditStatus.NOT_CHECKED)
ok: Final = partial(AuditFinding, AuditStatus.OK)


def ranks(numbers: Iterable[int]) -> str:
    """Return 'rank 3' or 'ranks 0-3, 8', of at most MOST_NAMED spans."""
    spans: list[list[int]] = []
    for number in (ordered := sorted(set(numbers))):
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    named = ["-".join(map(str, span)) for span in spans[:MOST_NAMED]]
    rest = f" and more, {len(ordered)} in all" if len(spans) > MOST_NAMED else ""
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {', '.join(named)}{rest}"


def comma_list(words: Sequence[str]) -> str:
    """Return *words* with commas, of at most MOST_NAMED."""
    unique = list(dict.fromkeys(words))
    rest = f" and {len(unique) - MOST_NAMED} more" if len(unique) > MOST_NAMED else ""
    return ", ".join(unique[:MOST_NAMED]) + rest


def binary(size: float) -> str:
    """Return *size* bytes in KiB, MiB or GiB."""
    for unit, bytes_of in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= bytes_of:
            return f"{size / bytes_of:.3g} {unit}"
    return f"{size / 2**10:.3g} KiB"


def count(number: float, noun: str) -> str:
    """Return *number* with *noun*, in the plural unless it is one."""
    return f"{number:g} {noun}{'s' * (number != 1)}"
