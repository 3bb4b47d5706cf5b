"""One job at one time: what the rules have recorded of it, asked for once."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from exporter.client.fields import label, whole
from exporter.client.names import Names, names_of_nodes
from exporter.client.prometheus import Prometheus, Sample, selector
from exporter.diagnose.advise import host
from exporter.diagnose.model import Place
from exporter.top.model import Job

# A job has a few of each, however many ranks it has: they are about late and silent ranks only.
SERIES: Final = (
    "job_kind:rankskew_gpus_lost:sum|job_stage:rankskew_gpus_lost:sum"
    "|rank_stage:rankskew_(gpus_lost:sum|hang_suspect:group)"
    "|rank:rankskew_(late:ratio|gpus_lost:sum|cause:info|silent_seconds:max)"
    "|rank_cause:rankskew_suspect:ratio|rankskew_late_line_ratio"
    "|rankskew_late_since_timestamp_seconds|job_reason:rankskew_not_judgeable:bool"
    "|job:rankskew_(threshold:value|gpu_hour_price:value|hung:seconds|ranks_missing:sum"
    "|ranks:sum|run_seconds:max|starting:timestamp|coverage:ratio)"
    "|node:rankskew_exporter_down:group|job_source:rankskew_gpus_lost:info"
)
INFO: Final = "rankskew_(rank_info|gpu_rank_info)"

Infos = dict[str, Sample]


@dataclass(frozen=True, slots=True)
class Moment:
    """The *job* as *prometheus* knows it, its *samples* by series, and *names* of addresses."""

    prometheus: Prometheus
    job: Job
    samples: dict[str, list[Sample]]
    names: Names = field(default_factory=dict)

    @property
    def where(self) -> str:
        """Return the matchers of the job."""
        return selector(cluster=self.job.cluster, job_id=self.job.job_id)

    def all(self, name: str) -> Sequence[Sample]:
        """Return the samples of a series, none if it has none."""
        return self.samples.get(name, ())

    def value(self, name: str) -> float | None:
        """Return the value of a series that a job has once."""
        found = self.all(name)
        return found[0].value if found else None

    def threshold(self, name: str, default: float) -> float:
        """Return the job's threshold of that *name*."""
        for sample in self.all("job:rankskew_threshold:value"):
            if sample["name"] == name:
                return sample.value
        return default

    def host(self, instance: str) -> str | None:
        """Return what a node is called: its name, or the host in its exporter's address."""
        return self.names.get((self.job.cluster, instance)) or host(instance)

    def shown(self, instance: str) -> str:
        """Return a node's name, or the address of its exporter if only that is known."""
        return self.names.get((self.job.cluster, instance)) or instance

    @property
    def ranks(self) -> float:
        """Return how many ranks are judged, or else how many there are."""
        return self.value("job:rankskew_ranks:sum") or self.job.world_size or 1.0

    def places(self, ranks: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Place]:
        """Return where each of *ranks*, pairs of rank and instance, runs; raises Trouble."""
        wanted = set(ranks)
        known = self._infos("{}", wanted)
        if missing := wanted - known.keys():
            # An exporter that has just gone, or did not answer in time.
            known |= self._infos("last_over_time({}[15m])", missing)
        return {who: _place(who[1], self.host(who[1]), known.get(who, {})) for who in wanted}

    def _infos(self, form: str, ranks: set[tuple[str, str]]) -> dict[tuple[str, str], Infos]:
        names = "|".join(sorted({rank for rank, _ in ranks}))
        if not names:
            return {}
        series = f'{{__name__=~"{INFO}",{self.where},rank=~"{names}"}}'
        known: dict[tuple[str, str], Infos] = defaultdict(dict)
        for sample in self.prometheus.query(form.replace("{}", series)):
            known[sample["rank"], sample["instance"]][sample.name] = sample
        return known


def look(prometheus: Prometheus, job: Job) -> Moment:
    """Return what is recorded of *job*; raises Trouble."""
    samples: dict[str, list[Sample]] = defaultdict(list)
    where = selector(cluster=job.cluster, job_id=job.job_id)
    for sample in prometheus.query(f'{{__name__=~"{SERIES}",{where}}}'):
        samples[sample.name].append(sample)
    return Moment(prometheus, job, samples, names_of_nodes(prometheus, job.cluster))


def _place(instance: str, node: str | None, known: Infos) -> Place:
    nothing = Sample("", {}, 0.0)
    info = known.get("rankskew_rank_info", nothing)
    on_gpu = known.get("rankskew_gpu_rank_info", nothing)
    return Place(
        node=node,
        instance=instance or None,
        gpu=label(on_gpu["gpu"]),
        gpu_uuid=label(info["gpu_uuid"] or on_gpu["gpu_uuid"]),
        pid=whole(info["pid"]),
    )
