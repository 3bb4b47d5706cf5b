"""What a check finds: a status, the reason, and what to do."""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

# Of ranks or nodes in one sentence.
MOST_NAMED: Final = 8
# Of one check: a mistake in a job script is made on a thousand nodes.
MOST_FINDINGS: Final = 8


class AuditStatus(enum.StrEnum):
    """The outcomes of a check, the worst first."""

    FAIL = "fail"
    WARN = "warn"
    NOT_CHECKED = "not_checked"
    OK = "ok"


ORDER: Final = tuple(AuditStatus)


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One sentence on what is so, and for FAIL and WARN one on *what to do*."""

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
    """Return the outcome of *check*; what is fine is left out beside what is not."""
    found = sorted(findings, key=lambda finding: ORDER.index(finding.status))
    troubles = [one for one in found if one.status in (AuditStatus.FAIL, AuditStatus.WARN)]
    shown = tuple((troubles or found[:1])[:MOST_FINDINGS])
    return Outcome(check, shown, max(0, len(troubles) - len(shown)))


def fail(reason: str, advice: str) -> AuditFinding:
    """Return what will break or slow the job."""
    return AuditFinding(AuditStatus.FAIL, reason, advice)


def warn(reason: str, advice: str) -> AuditFinding:
    """Return what may slow the job."""
    return AuditFinding(AuditStatus.WARN, reason, advice)


def ok(reason: str) -> AuditFinding:
    """Return that all is well."""
    return AuditFinding(AuditStatus.OK, reason)


def not_checked(reason: str) -> AuditFinding:
    """Return why there was nothing to look at."""
    return AuditFinding(AuditStatus.NOT_CHECKED, reason)


def ranks(numbers: Iterable[int]) -> str:
    """Return 'rank 3' or 'ranks 0-3, 8', of at most MOST_NAMED spans."""
    ordered = sorted(set(numbers))
    spans: list[list[int]] = []
    for number in ordered:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    named = ["-".join(map(str, span)) for span in spans[:MOST_NAMED]]
    rest = f" and more, {len(ordered)} in all" if len(spans) > MOST_NAMED else ""
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {', '.join(named)}{rest}"


def names(words: Sequence[str]) -> str:
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
