"""Which series of a Prometheus a report on one job reads."""

from dataclasses import dataclass

from exporter.client.prometheus import selector

SAME_RANK = "on (cluster, job_id, rank, instance)"


@dataclass(frozen=True, slots=True)
class JobSeries:
    """Expressions for the job with these labels; *cluster* None is any."""

    job_id: str
    cluster: str | None

    @property
    def labels(self) -> str:
        """Return the matchers of the job."""
        return selector(cluster=self.cluster, job_id=self.job_id)

    def in_cluster(self, name: str) -> str:
        """Return the series *name* of all jobs of the cluster."""
        return f"{name}{{{selector(cluster=self.cluster)}}}"

    def of(self, name: str, matchers: str = "") -> str:
        """Return the series *name* of the job."""
        return f"{name}{{{self.labels}{matchers}}}"

    @property
    def alive(self) -> str:
        """Return how many ranks report, while any does."""
        return f"{self.of('job:rankskew_ranks_beating:sum')} > 0"

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
