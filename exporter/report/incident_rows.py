"""One incident as the row of a table, and as JSON."""

from typing import Any, Final

from exporter.report.shadow import Judged
from exporter.report.times import gpu_hours, iso, length, money

PAGE, NOTE_SENT, HELD_BACK = "page", "note", "explained by another"
# Those that begin with > are numbers.
NAMES: Final = (
    *("Incident", "Severity", "Alert", "Job", "Who", "Stage", "Cause"),
    *(">Lasted", ">GPU-hours", ">US$", "Sends", "Judged"),
)


def incident_row(each: Judged) -> list[str]:
    """Return the cells under NAMES."""
    incident = each.incident
    return [
        incident.id,
        incident.severity,
        incident.alert.removeprefix("Rankskew"),
        incident.who.get("job_id", "–"),
        incident.place,
        incident.mostly("stage") or "–",
        incident.mostly("cause") or "–",
        length(incident.end - incident.begin),
        gpu_hours(each.cost.gpu_hours),
        money(each.cost.dollars),
        _sends(each),
        each.verdict or "–",
    ]


def incident_json(each: Judged) -> dict[str, Any]:
    """Return one incident for a program."""
    incident, said = each.incident, each.confirmation
    return {
        "incident": incident.id,
        "alert": incident.alert,
        "severity": incident.severity,
        "cluster": incident.who.get("cluster"),
        "job_id": incident.who.get("job_id"),
        "who": dict(incident.who),
        "stage": incident.mostly("stage"),
        "cause": incident.mostly("cause"),
        "begin": iso(incident.begin),
        "end": iso(incident.end),
        "seconds": incident.end - incident.begin,
        "gpu_hours": each.cost.gpu_hours,
        "dollars": each.cost.dollars,
        "sends": _sends(each),
        "verdict": each.verdict,
        "note": said.note if said else None,
        "by": said.by if said else None,
    }


def _sends(each: Judged) -> str:
    if not each.is_sent:
        return HELD_BACK
    return PAGE if each.pages else NOTE_SENT
