"""What is said of nodes and GPUs: a document for people, and one for programs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from exporter.vocabulary.words import CAUSES
from rankskew.nodes.judge import NodeFinding, NodeVerdict, beyond_their_nodes, judged
from rankskew.nodes.read import FleetPast
from rankskew.nodes.worth import sections, weekly_json, worth
from rankskew.report.document import ENERGY, MONEY, Document, Section
from rankskew.report.times import HOUR_SECONDS, gpu_hours, iso, show
from rankskew.wording import counted

MOST_ROWS: Final = 20
MOST_IN_REPORT: Final = 5
MOST_CAUSES: Final = 3
NAMES: Final = (
    *(
        ">GPU-hours lost",
        MONEY,
        ENERGY,
        ">Incidents",
        ">Jobs",
        ">GPU-hours used",
        ">× the others",
        "95 %",
    ),
    *("Causes", "Verdict"),
)


def nodes_document(fleet: FleetPast, show_all: bool) -> Document:
    """Return what *fleet* says of its nodes and GPUs, of all of them or of the worst."""
    nodes, gpus = _judged(fleet)
    lemons = [each for each in nodes if each.verdict is NodeVerdict.LEMON]
    begin, end = fleet.span
    lost = sum(each.past.lost_gpu_hours for each in nodes)
    by_lemons = sum(each.past.lost_gpu_hours for each in lemons)
    lines = [
        f"Jobs lost {gpu_hours(lost)} GPU-hours waiting for late nodes, "
        f"{gpu_hours(by_lemons)} of them for {counted(len(lemons), 'lemon')}."
    ]
    return Document(
        f"Nodes, {show(begin)} to {show(end)} UTC",
        lines,
        [
            _section("Nodes", "Node", fleet, nodes, show_all),
            _section("GPUs", "GPU", fleet, gpus, show_all),
            *sections(fleet, MOST_IN_REPORT),
        ],
    )


def worst_nodes(fleet: FleetPast) -> Section:
    """Return the section of another report on the nodes of *fleet* that jobs waited for most."""
    section = _section("Nodes", "Node", fleet, _judged(fleet)[0][:MOST_IN_REPORT], show_all=True)
    return replace(section, lines=[*section.lines, "rankskew nodes says more of them."])


def nodes_json(fleet: FleetPast) -> dict[str, Any]:
    """Return *fleet* for a program, as docs/nodes.md says."""
    nodes, gpus = _judged(fleet)
    begin, end = fleet.span
    return {
        "begin": iso(begin),
        "end": iso(end),
        "nodes": [_json(fleet, each) for each in nodes],
        "gpus": [_json(fleet, each) for each in gpus],
        "week": weekly_json(fleet),
    }


def sentence(each: NodeFinding) -> str:
    """Return the verdict on *each*, with what it is late with or since when."""
    return "; ".join(_parts(each))


def _judged(fleet: FleetPast) -> tuple[list[NodeFinding], list[NodeFinding]]:
    """Return the nodes, and the GPUs that jobs waited for without all of their node."""
    nodes = judged(fleet.nodes)
    gpus = beyond_their_nodes(judged(fleet.gpus), nodes)
    return nodes, [each for each in gpus if each.past.incidents]


def _section(
    title: str, what: str, fleet: FleetPast, those: Sequence[NodeFinding], show_all: bool
) -> Section:
    late = [each for each in those if each.past.incidents]
    shown = late if show_all else late[:MOST_ROWS]
    lines = [] if late else ["No job waited for any."]
    if len(shown) < len(late):
        lines.append(f"The first {len(shown)} of {len(late)}; --all prints all.")
    clusters = {each.past.cluster for each in those} - {""}
    rows = []
    for each in shown:
        past = each.past
        name = f"{past.cluster}/{past.name}" if len(clusters) > 1 else past.name
        low, high = each.interval
        rows.append(
            (
                name,
                gpu_hours(past.lost_gpu_hours),
                *worth(fleet, past).cells(),
                str(len(past.incidents)),
                str(past.jobs),
                gpu_hours(past.used_gpu_hours),
                f"{each.ratio:.1f}",
                f"{low:.1f} to {high:.1f}",
                ", ".join(_short(cause) for cause in list(past.causes())[:MOST_CAUSES]),
                sentence(each),
            )
        )
    return Section(title, lines, (what, *NAMES), rows)


def _short(cause: str) -> str:
    return CAUSES[cause].short if cause in CAUSES else cause


def _parts(each: NodeFinding) -> Iterator[str]:
    yield each.verdict.value
    if each.past.serial:
        yield f"serial number {each.past.serial}"
    if each.verdict is NodeVerdict.ONE_JOB:
        yield f"job {each.job}"
    if each.verdict in (NodeVerdict.LEMON, NodeVerdict.UNCERTAIN):
        if each.gpu and each.gpu != each.past.name:
            yield f"all on GPU {each.gpu}"
        if each.driver:
            version, came = each.driver
            yield f"since driver {version} came on {show(came)}"


def _json(fleet: FleetPast, each: NodeFinding) -> dict[str, Any]:
    past, driver = each.past, each.driver
    cost = worth(fleet, past)
    return {
        "name": past.name,
        "cluster": past.cluster,
        "serial": past.serial or None,
        "verdict": each.verdict.name.lower(),
        "sentence": sentence(each),
        "gpu_hours_lost": past.lost_gpu_hours,
        "dollars_lost": cost.dollars,
        "kilowatt_hours_lost": cost.kilowatt_hours,
        "gpu_hours_used": past.used_gpu_hours,
        "jobs": past.jobs,
        "ratio": each.ratio,
        "interval": list(each.interval),
        "chance": each.chance,
        "only_job": each.job or None,
        "gpu_uuid": each.gpu or None,
        "since_driver": driver and {"version": driver[0], "at": iso(driver[1])},
        "causes": past.causes(),
        "gpus": past.gpus(),
        "incidents": [
            {
                "job_id": incident.job,
                "begin": iso(incident.begin),
                "end": iso(incident.end),
                "gpu_hours_lost": incident.gpu_seconds / HOUR_SECONDS,
                "causes": {c: lost / HOUR_SECONDS for c, lost in incident.causes.items()},
                "of_the_job": incident.is_of_the_job,
            }
            for incident in past.incidents
        ],
    }
