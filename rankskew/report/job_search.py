"""Finds a job in what a Prometheus remembers, and names the series that a report on it reads."""

from dataclasses import dataclass
from typing import Final

from exporter.errors import StartError
from rankskew.client.prometheus import Prometheus, selector
from rankskew.report.history import Grid, PastSeries, grid
from rankskew.report.losses import slower_gpus
from rankskew.report.times import Span, show
from rankskew.wording import few

# The search for the job takes one query.
SEARCH_POINTS: Final = 1_000
BEATING: Final = "job:rankskew_ranks_beating:sum"
SAME_RANK: Final = "on (cluster, job_id, rank, instance)"


@dataclass(frozen=True, slots=True)
class JobSeries:
    """Expressions for the job with these labels; *cluster* None is any."""

    job_id: str
    cluster: str | None

    @property
    def labels(self) -> str:
        """Return the matchers of the job."""
        return selector(cluster=self.cluster, job_id=self.job_id)

    def of(self, name: str, matchers: str = "") -> str:
        """Return the series *name* of the job."""
        return f"{name}{{{self.labels}{matchers}}}"

    @property
    def alive(self) -> str:
        """Return how many ranks report, while any does."""
        return f"{self.of(BEATING)} > 0"

    def while_alive(self, expression: str) -> str:
        """Return *expression* while a rank reports: an ended job is exposed for a while."""
        return f"({expression}) and on (cluster, job_id) ({self.alive})"

    @property
    def late(self) -> str:
        """Return the GPUs lost by rank, stage and cause; one cause, even if an old one lingers."""
        lost = self.of("rank_stage:rankskew_gpus_lost:sum")
        cause = self.of("rankskew_late_cause_info")
        one = f"topk by (cluster, job_id, rank, instance) (1, {cause})"
        return f"{lost} * {SAME_RANK} group_left (cause) {one} or {lost} unless {SAME_RANK} {cause}"

    @property
    def slower(self) -> tuple[str, str, str]:
        """Return how many times as long stages take, since when, and what that costs in GPUs."""
        by = "by (cluster, job_id, scope, stage)"
        ratio = self.of("rankskew_job_change_ratio")
        since = self.of("rankskew_job_change_since_timestamp_seconds")
        return f"max {by} ({ratio})", f"min {by} ({since})", slower_gpus(self.labels)


def search(
    prometheus: Prometheus, job_id: str, cluster: str | None, span: Span, interval_seconds: float
) -> tuple[JobSeries, Grid]:
    """Return the series of the job during *span*, and the times at which to read them.

    Raises Trouble if *prometheus* cannot tell, StartError if it has no such job or several.
    """
    long = (span[1] - span[0]) / SEARCH_POINTS
    coarse = grid(*span, interval_seconds, long)
    step = coarse.step_seconds
    counts = JobSeries(job_id, cluster).of(BEATING)
    # Up to the last step, so that a job of the last minutes is found too.
    found = PastSeries(prometheus).read(
        f"max_over_time({counts}[{step * 1000:.0f}ms]) > 0",
        Grid(coarse.begin, coarse.end + step, step),
    )
    if not found:
        raise StartError(_none(prometheus, job_id, cluster, span))
    clusters = sorted({each["cluster"] for each in found})
    if len(clusters) > 1:
        raise StartError(
            f"several clusters have a job {job_id!r}; give one: --cluster {clusters[0]!r}"
        )
    begin = max(min(each.points[0][0] for each in found) - step, span[0])
    end = min(max(each.points[-1][0] for each in found) + interval_seconds, span[1])
    return JobSeries(job_id, clusters[0]), grid(begin, end, interval_seconds)


def _none(prometheus: Prometheus, job_id: str, cluster: str | None, span: Span) -> str:
    """Return the sentence that says which jobs there were instead."""
    begin, end = span
    where = f"from {show(begin)} to {show(end)} UTC"
    those = f"{BEATING}{{{selector(cluster=cluster)}}}[{end - begin:.0f}s]"
    seen = prometheus.query(f"group by (job_id) (last_over_time({those}))", end)
    names = sorted({sample["job_id"] for sample in seen})
    if not names:
        there = "" if cluster is None else f" in cluster {cluster!r}"
        return f"no job was seen{there} {where}; rankskew report --incidents says what fired"
    return f"there was no job {job_id!r} {where}; there were: {few(names)}"
