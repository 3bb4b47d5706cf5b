"""Adds to a finding what to do about it, in the order of least disturbance."""

from dataclasses import replace

from exporter.advice import Advice, advice, filled, situations
from exporter.diagnose.model import Finding, Place, Step


def advised(finding: Finding, job_id: str) -> Finding:
    """Return *finding* with what to do first, all that can be done, the proof and the links."""
    entry = _entry(finding)
    values = _values(finding, job_id)
    steps = entry.steps(finding.detail, finding.stage)
    return replace(
        finding,
        first=filled(finding.first, values) if finding.first else _first(entry, finding, values),
        steps=tuple(Step(filled(step.do, values), step.disturbs) for step in steps),
        proof=filled(entry.proof, values),
        links=tuple(entry.links()),
        tells=entry.found,
    )


def _entry(finding: Finding) -> Advice:
    return advice().get(finding.what) or situations()[finding.what]


def _first(entry: Advice, finding: Finding, values: dict[str, str]) -> str:
    """Return it in the words of the alert, which add the node to the cause of a late rank."""
    said = filled(entry.first, values)
    node = finding.place.node
    return f"{said} on {node}" if node and entry.playbook is not None else said


def _values(finding: Finding, job_id: str) -> dict[str, str]:
    place: Place = finding.place
    known: dict[str, object] = {
        "JOB": job_id,
        "RANK": finding.rank,
        "NODE": place.node,
        "PID": place.pid,
        "GPU": place.gpu,
        "UUID": place.gpu_uuid,
    }
    return {name: str(value) for name, value in known.items() if value is not None}
