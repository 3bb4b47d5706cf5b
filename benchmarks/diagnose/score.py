"""Whether the document of `rankskew diagnose` says what is right of a fault."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.diagnose.plan import BALANCED, Expected

Row = dict[str, Any]
PARTS: Final = ("rank", "stage", "cause", "first action", "exit status")


def score(source: str, fault: str, expected: Expected, document: Mapping[str, Any]) -> Row:
    """Return the row of a fault; None where a part does not apply.

    The first finding counts, and for the late ranks all that name any.
    """
    findings: Sequence[Mapping[str, Any]] = document.get("findings", ())
    first = findings[0] if findings else {}
    cause = _cause(expected, first)
    is_named = bool(first) and first.get("cause") not in (None, "unknown")
    return {
        "source": source,
        "fault": fault,
        "said": said(document),
        "rank": _ranks(findings) == set(expected.ranks) if expected.ranks else None,
        "stage": first.get("stage") == expected.stage if expected.stage else None,
        "cause": cause,
        "first action": expected.first in (first.get("first") or "") if expected.first else None,
        "exit status": document["exit_status"] == expected.status,
        "explains": first.get("explains"),
        "wrong cause": cause is False and is_named,
    }


def _ranks(findings: Sequence[Mapping[str, Any]]) -> set[int]:
    late = [each for each in findings if each["cause"] is not None] or findings[:1]
    return {rank for each in late for rank in each["ranks"]}


def _cause(expected: Expected, first: Mapping[str, Any]) -> bool | None:
    if not expected.what:
        return None
    right_detail = expected.detail is None or (first.get("detail") or "") == expected.detail
    return first.get("what") in expected.what and right_detail


def is_right(row: Row) -> bool:
    """Say whether all parts that apply are right."""
    return all(row[part] is not False for part in PARTS)


def said(document: Mapping[str, Any]) -> str:
    """Return what the report comes to, in a few words."""
    if "trouble" in document:
        return str(document["trouble"])
    findings = document["findings"]
    if not findings:
        return "balanced" if document["exit_status"] == BALANCED else "nothing"
    first = findings[0]
    who = "" if first["rank"] is None else f"rank {first['rank']} "
    node = f"{first['place']['node']} " if not who and first["place"]["node"] else ""
    where = "" if first["stage"] is None else f"{first['stage']} "
    detail = f" ({first['detail']})" if first["detail"] else ""
    also = [each["what"] for each in findings[1:]]
    more = f"; also {', '.join(also)}" if also else ""
    return f"{who}{node}{where}{first['what']}{detail}{more}".replace("_", " ")
