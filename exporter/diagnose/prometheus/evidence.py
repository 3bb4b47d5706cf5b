"""Numbers of a late rank or slow node against its peers, from a Prometheus."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exporter.client.prometheus import selector
from exporter.diagnose import by_stage
from exporter.diagnose.figures import GPU, NODE, Measure, measures
from exporter.diagnose.model import Figure, Finding
from exporter.diagnose.prometheus.moment import Moment

# Two scrapes must lie in it; the shorter one first, because earlier steps may not have been late.
WINDOWS: Final = ("1m", "2m", "5m")
NODES_OF_JOB: Final = "and on (cluster, instance) node:rankskew_ranks:max"


@dataclass(frozen=True, slots=True)
class Subject:
    """Who is measured: matchers of *own* series and of the *peers'*, of ranks, GPUs and nodes."""

    own: str
    peers: str
    own_gpu: str
    beside_gpu: str
    own_node: str
    other_nodes: str
    of_job: str


def figures(moment: Moment, finding: Finding, late: Sequence[str]) -> tuple[Figure, ...]:
    """Return the stages of *finding*, and the figure behind its cause; raises Trouble.

    *late* are all late ranks: none of them is a peer.
    """
    subject = _subject(moment, finding, late)
    found = _stages(moment, subject)
    asked = measures(finding.cause or "", finding.detail or "")
    return (*found, *(figure for each in asked for figure in _measured(moment, subject, each)))


def _stages(moment: Moment, subject: Subject) -> Sequence[Figure]:
    """Return the stages in which the subject takes longer than its peers, the longest first."""
    for window in WINDOWS:
        own = _by_stage(moment, f"avg by (stage) ({_per_step(subject.own, window)})")
        if own:
            break
    else:
        return ()
    peers = _by_stage(moment, f"quantile by (stage) (0.5, {_per_step(subject.peers, window)})")
    return by_stage.stage_figures(own, [peers])


def _subject(moment: Moment, finding: Finding, late: Sequence[str]) -> Subject:
    job = moment.job
    place = finding.place
    others = "|".join(late)
    is_node = finding.rank is None
    group = selector(peer_group=finding.peer_group)
    peers = f'{moment.where},{group},rank!~"{others}"'.replace(",,", ",")
    own = selector(
        cluster=job.cluster,
        job_id=job.job_id,
        instance=place.instance,
        rank=None if is_node else str(finding.rank),
    )
    where = selector(cluster=job.cluster)
    node = selector(instance=place.instance)
    uuid = selector(gpu_uuid=place.gpu_uuid)
    return Subject(
        own=own,
        peers=peers,
        own_gpu=f"{where},{node}" if is_node or not uuid else f"{where},{node},{uuid}",
        beside_gpu="" if is_node or not uuid else f"{where},{node},{uuid.replace('=', '!=', 1)}",
        own_node=f"{where},{node}",
        other_nodes=f"{where},{node.replace('=', '!=', 1)}",
        of_job=f"{NODES_OF_JOB}{{{moment.where}}}",
    )


def _measured(moment: Moment, subject: Subject, measure: Measure) -> list[Figure]:
    """Return the figure, none if there is no reading or nothing to see in it."""

    def one(expression: str) -> float | None:
        found = moment.prometheus.query(expression)
        return found[0].value if found else None

    def over(matchers: str, of_job: str = "") -> str:
        return f"quantile(0.5, ({measure.expression.replace('WHERE', matchers)}) {of_job})"

    beside = "its peers"
    if measure.of == GPU:
        own = one(over(subject.own_gpu))
        peers, beside = None, "the other GPUs of its node"
        if subject.beside_gpu:
            peers = one(over(subject.beside_gpu))
        if peers is None:
            peers, beside = one(over(subject.other_nodes, subject.of_job)), "other nodes"
    elif measure.of == NODE:
        own, beside = one(over(subject.own_node)), "other nodes"
        peers = one(over(subject.other_nodes, subject.of_job))
    else:
        own, peers = one(over(subject.own)), one(over(subject.peers))
    if own is None or not (own or peers):
        return []
    return [Figure(measure.name, measure.unit, own, peers, beside)]


def _per_step(where: str, window: str) -> str:
    return (
        f"rate(rankskew_stage_seconds_total{{{where}}}[{window}]) / ignoring (phase, stage)"
        f" group_left () (rate(rankskew_steps_total{{{where}}}[{window}]) > 0)"
    )


def _by_stage(moment: Moment, expression: str) -> dict[str, float]:
    return {sample["stage"]: sample.value for sample in moment.prometheus.query(expression)}
