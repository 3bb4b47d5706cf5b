"""One job at one time: what the rules have recorded of it, asked for once."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from exporter.client.fields import label, whole
from exporter.client.names import Names, names_of_nodes
from exporter.client.prometheus import Prometheus, Sample, selector
from exporter.diagnose.known import Known
from exporter.diagnose.model import Place, host
from exporter.live.sentences import LineView
from exporter.live.states import RANKS_MISSING
from exporter.top.model import Job
from exporter.vocabulary.words import reasons_in_order

# A job has a few of each, however many ranks it has: they are about late and silent ranks only.
SERIES: Final = (
    "job_stage:rankskew_gpus_lost:sum|rank_stage:rankskew_(gpus_lost:sum|hang_suspect:group)"
    "|rank:rankskew_(late:ratio|silent_seconds:max)|rankskew_late_line_ratio"
    "|job_reason:rankskew_not_judgeable:bool|node:rankskew_exporter_down:group"
    "|job:rankskew_(threshold:value|gpu_hour_price:value|ranks:sum|run_seconds:max|starting_seconds:max)"
)
REASON: Final = "job_reason:rankskew_not_judgeable:bool"
DOWN: Final = "node:rankskew_exporter_down:group"
JUDGE: Final = "rankskew_job_judge_info"
ON_GPU: Final = "rankskew_gpu_rank_info"
INFO: Final = "rankskew_(rank_info|gpu_rank_info)"
# An exporter that has just gone, or did not answer in time, has told where its ranks are.
RECENTLY: Final = "last_over_time({}[15m])"

NOTHING: Final = Sample("", {}, 0.0)

Infos = dict[str, Sample]


@dataclass(frozen=True, slots=True)
class Moment:
    """The *job* as *prometheus* knows it, its *samples* by series, and *names* of addresses."""

    prometheus: Prometheus
    job: Job
    samples: dict[str, list[Sample]]
    names: Names

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

    def place(self, instance: str) -> Place:
        """Return the node whose exporter is at *instance*."""
        name = self.names.get((self.job.cluster, instance))
        return Place(node=name or host(instance), instance=instance or None)

    def by_rank_and_stage(self) -> dict[int, dict[str, float]]:
        """Return the GPUs lost to each late rank, by stage."""
        lost: dict[int, dict[str, float]] = defaultdict(dict)
        for sample in self.all("rank_stage:rankskew_gpus_lost:sum"):
            if sample["rank"].isdecimal() and sample.value > 0:
                lost[int(sample["rank"])][sample["stage"]] = sample.value
        return lost

    def known(self) -> Known:
        """Return what the findings are made from; raises Trouble."""
        is_missing = self.job.state == RANKS_MISSING
        silent = self._silent() if is_missing else []
        unprobed = self._ask("rankskew_gpu_rank_info", 'source="environ",') if is_missing else []
        judges = self.prometheus.query(
            f"group by (judge) (rankskew_job_judge_info{{{self.where}}})"
        )
        late = self.all("rank:rankskew_late:ratio")
        suspects = self.all("rank_stage:rankskew_hang_suspect:group")
        return Known(
            self.job,
            places=self.places(
                {rank.rank: "" for rank in self.job.ranks[:1]}
                | instances([*unprobed, *silent, *suspects, *late])
            ),
            lines=self._lines(),
            silent={rank: each.value for rank, each in _by_rank(silent).items()},
            unprobed=list(_by_rank(unprobed)),
            down=[self.place(each) for each in self._labels(DOWN, "instance")],
            rotating={s["stage"]: s.value for s in self.all("job_stage:rankskew_gpus_lost:sum")},
            reasons=reasons_in_order(self._labels(REASON, "reason")),
            age_seconds=self.value("job:rankskew_starting_seconds:max")
            or self.value("job:rankskew_run_seconds:max"),
            judge=judges[0]["judge"] if len(judges) == 1 else None,
            judged_ranks=self.value("job:rankskew_ranks:sum"),
            thresholds={s["name"]: s.value for s in self.all("job:rankskew_threshold:value")},
        )

    def places(self, wanted: Mapping[int, str]) -> dict[int, Place]:
        """Return where each rank runs, by the instance of its exporter if it is known."""
        known = self._infos("{}", wanted)
        if missing := wanted.keys() - known.keys():
            known |= self._infos(RECENTLY, {rank: wanted[rank] for rank in missing})
        nothing: Infos = {}
        return {
            rank: self._place(*known.get(rank, (instance, nothing)))
            for rank, instance in wanted.items()
        }

    def _infos(self, form: str, wanted: Mapping[int, str]) -> dict[int, tuple[str, Infos]]:
        """Return instance and series of each of the ranks, its own instance's if it has one."""
        if not wanted:
            return {}
        names = "|".join(map(str, sorted(wanted)))
        series = f'{{__name__=~"{INFO}",{self.where},rank=~"{names}"}}'
        known: dict[int, tuple[str, Infos]] = {}
        for sample in self.prometheus.query(form.replace("{}", series)):
            rank, instance = int(sample["rank"]), sample["instance"]
            if instance == (wanted.get(rank) or known.get(rank, (instance,))[0]):
                known.setdefault(rank, (instance, {}))[1][sample.name] = sample
        return known

    def _place(self, instance: str, infos: Infos) -> Place:
        info, on_gpu = (infos.get(name, NOTHING) for name in ("rankskew_rank_info", ON_GPU))
        return replace(
            self.place(instance),
            gpu=label(on_gpu["gpu"]),
            gpu_uuid=label(info["gpu_uuid"] or on_gpu["gpu_uuid"]),
            pid=whole(info["pid"]),
        )

    def _lines(self) -> dict[int, list[LineView]]:
        found: dict[int, list[LineView]] = defaultdict(list)
        for each in self.all("rankskew_late_line_ratio"):
            if each["rank"].isdecimal():
                line = LineView(each["stage"], each["place"], each.value)
                found[int(each["rank"])].append(line)
        return found

    def _silent(self) -> Sequence[Sample]:
        """Return the silent ranks; the rules leave out those of a job that is dead."""
        return self.all("rank:rankskew_silent_seconds:max") or self._ask(
            "rankskew_rank_silent_seconds"
        )

    def _ask(self, name: str, matchers: str = "") -> Sequence[Sample]:
        return self.prometheus.query(f"{name}{{{matchers}{self.where}}}")

    def _labels(self, name: str, label: str) -> list[str]:
        return sorted({sample[label] for sample in self.all(name)})


def look(prometheus: Prometheus, job: Job) -> Moment:
    """Return what is recorded of *job*; raises Trouble."""
    samples: dict[str, list[Sample]] = defaultdict(list)
    where = selector(cluster=job.cluster, job_id=job.job_id)
    for sample in prometheus.query(f'{{__name__=~"{SERIES}",{where}}}'):
        samples[sample.name].append(sample)
    return Moment(prometheus, job, samples, names_of_nodes(prometheus, job.cluster))


def instances(samples: Iterable[Sample]) -> dict[int, str]:
    """Return the instance that each rank in *samples* has."""
    return {rank: each["instance"] for rank, each in _by_rank(samples).items()}


def _by_rank(samples: Iterable[Sample]) -> dict[int, Sample]:
    return {int(each["rank"]): each for each in samples if each["rank"].isdecimal()}
