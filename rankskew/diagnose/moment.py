"""One job at one time: what the rules of a Prometheus have recorded of it, asked for once."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from exporter.live.causes import LineView
from exporter.live.states import RANKS_MISSING
from exporter.vocabulary.words import reasons_in_order
from rankskew.client.fields import label, whole
from rankskew.client.prometheus import Names, Prometheus, Sample, names_of_nodes, selector
from rankskew.diagnose.model import JobFacts, Place, host
from rankskew.top.from_prometheus import Recorded, series
from rankskew.top.model import JobStatus

# A job has a few of each, however many ranks it has: they are about late and silent ranks only.
SERIES: Final = (
    "job_stage:rankskew_gpus_lost:sum|rank_stage:rankskew_(gpus_lost:sum|hang_suspect:group)"
    "|rank:rankskew_(late:ratio|silent_seconds:max)|rankskew_late_line_ratio"
    "|job_reason:rankskew_not_judgeable:bool|node:rankskew_exporter_down:group"
    "|job:rankskew_(threshold:value|gpu_hour_price:value|ranks:sum|run_seconds:max|starting_seconds:max)"
)
INFO: Final = "rankskew_(rank_info|gpu_rank_info)"
# An exporter that has just gone, or did not answer in time, has told where its ranks are.
RECENTLY: Final = "last_over_time({}[15m])"


@dataclass(frozen=True, slots=True)
class Moment:
    """The *job* as *prometheus* knows it, *found* of it by series, and *names* of addresses."""

    prometheus: Prometheus
    job: JobStatus
    found: Recorded
    names: Names

    @property
    def where(self) -> str:
        """Return the matchers of the job."""
        return _of(self.job)

    def place(self, instance: str) -> Place:
        """Return the node whose exporter is at *instance*."""
        name = self.names.get((self.job.cluster, instance))
        return Place(node=name or host(instance), instance=instance or None)

    def facts(self) -> JobFacts:
        """Return what the findings are made from; raises Trouble."""
        found, is_missing = self.found, self.job.state == RANKS_MISSING
        # The rules leave out the silent ranks of a job that is dead.
        silent = found["rank:rankskew_silent_seconds:max"] if is_missing else []
        if is_missing and not silent:
            silent = self._ask("rankskew_rank_silent_seconds")
        unprobed = self._ask("rankskew_gpu_rank_info", 'source="environ",') if is_missing else []
        judges = self.prometheus.query(
            f"group by (judge) (rankskew_job_judge_info{{{self.where}}})"
        )
        located = [
            *(*unprobed, *silent),
            *found["rank_stage:rankskew_hang_suspect:group"],
            *found["rank:rankskew_late:ratio"],
        ]
        late_gpus: dict[int, dict[str, float]] = defaultdict(dict)
        for rank, each in _of_ranks(found["rank_stage:rankskew_gpus_lost:sum"]):
            if each.value > 0:
                late_gpus[rank][each["stage"]] = each.value
        lines: dict[int, list[LineView]] = defaultdict(list)
        for rank, each in _of_ranks(found["rankskew_late_line_ratio"]):
            lines[rank].append(LineView(each["stage"], each["place"], each.value))
        return JobFacts(
            self.job,
            places=self.places({rank.rank: "" for rank in self.job.ranks[:1]} | instances(located)),
            lines=lines,
            late_gpus=late_gpus,
            silent={rank: each.value for rank, each in _of_ranks(silent)},
            unprobed=[rank for rank, _ in _of_ranks(unprobed)],
            down=[
                self.place(each)
                for each in sorted(found.by("instance", "node:rankskew_exporter_down:group"))
            ],
            rotating=found.by("stage", "job_stage:rankskew_gpus_lost:sum"),
            reasons=reasons_in_order(found.by("reason", "job_reason:rankskew_not_judgeable:bool")),
            age_seconds=found.value("job:rankskew_starting_seconds:max")
            or found.value("job:rankskew_run_seconds:max"),
            judge=judges[0]["judge"] if len(judges) == 1 else None,
            judged_ranks=found.value("job:rankskew_ranks:sum"),
            thresholds=found.by("name", "job:rankskew_threshold:value"),
            gpu_hour_price=found.value("job:rankskew_gpu_hour_price:value"),
        )

    def places(self, wanted: Mapping[int, str]) -> dict[int, Place]:
        """Return where each rank runs, by the instance of its exporter if it is known."""
        known = self._infos("{}", wanted)
        if missing := wanted.keys() - known.keys():
            known |= self._infos(RECENTLY, {rank: wanted[rank] for rank in missing})
        return {
            rank: self._place(known.get(rank, {"instance": instance}))
            for rank, instance in wanted.items()
        }

    def _infos(self, form: str, wanted: Mapping[int, str]) -> dict[int, dict[str, str]]:
        """Return what is known of each rank, by its own exporter if *wanted* has one."""
        if not wanted:
            return {}
        names = "|".join(map(str, sorted(wanted)))
        found = self.prometheus.query(form.format(series(INFO, f'{self.where},rank=~"{names}"')))
        known: dict[int, dict[str, str]] = {}
        # rankskew_rank_info is the last, so that its words count.
        for rank, sample in _of_ranks(sorted(found, key=lambda each: each.name)):
            own = wanted.get(rank) or known.get(rank, sample.labels)["instance"]
            if sample["instance"] == own:
                told = {name: each for name, each in sample.labels.items() if each}
                known.setdefault(rank, {}).update(told)
        return known

    def _place(self, infos: Mapping[str, str]) -> Place:
        gpu, uuid, pid = (infos.get(name) for name in ("gpu", "gpu_uuid", "pid"))
        place = self.place(infos["instance"])
        return replace(place, gpu=label(gpu), gpu_uuid=label(uuid), pid=whole(pid))

    def _ask(self, name: str, matchers: str = "") -> list[Sample]:
        return self.prometheus.query(f"{name}{{{matchers}{self.where}}}")


def look(prometheus: Prometheus, job: JobStatus) -> Moment:
    """Return what is recorded of *job*; raises Trouble."""
    found = Recorded(prometheus.query(series(SERIES, _of(job))))
    return Moment(prometheus, job, found, names_of_nodes(prometheus, selector(cluster=job.cluster)))


def instances(samples: Iterable[Sample]) -> dict[int, str]:
    """Return the instance that each rank in *samples* has."""
    return {rank: each["instance"] for rank, each in _of_ranks(samples)}


def _of(job: JobStatus) -> str:
    return selector(cluster=job.cluster, job_id=job.job_id)


def _of_ranks(samples: Iterable[Sample]) -> list[tuple[int, Sample]]:
    return [(int(each["rank"]), each) for each in samples if each["rank"].isdecimal()]
