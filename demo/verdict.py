"""The demo's conclusion: one line, based on the page."""

from dataclasses import dataclass
from typing import Any

from devstack.webhook import ReceivedAlert

STRAGGLER = "RankskewStraggler"


@dataclass(frozen=True, slots=True)
class NamedRank:
    """The named rank, the stage in which it is late, its cost, and the alert that named it."""

    job_id: str
    rank: str
    stage: str
    gpus_lost: float
    alert: str
    after_seconds: float

    def line(self) -> str:
        """Return the last line of the demo."""
        return (
            f"verdict: job={self.job_id} rank={self.rank} stage={self.stage} "
            f"gpus_lost={self.gpus_lost:.2f} alert={self.alert} after={self.after_seconds:.0f}s"
        )


@dataclass(frozen=True, slots=True)
class Health:
    """No rank was named, although the job could be judged for this long."""

    job_id: str
    gpus_lost: float
    judged_seconds: float
    alert: str
    after_seconds: float

    def line(self) -> str:
        """Return the last line of the demo."""
        return (
            f"verdict: job={self.job_id} no straggler gpus_lost={self.gpus_lost:.2f} "
            f"judged={self.judged_seconds:.0f}s alert={self.alert} after={self.after_seconds:.0f}s"
        )


Conclusion = NamedRank | Health


def verdict_of(
    page: ReceivedAlert, active_alerts: list[dict[str, Any]], after_seconds: float
) -> NamedRank:
    """Return the verdict in *page*; its cost is the value of its alert in Prometheus."""
    cost = [float(alert["value"]) for alert in active_alerts if alert["labels"] == page.labels]
    return NamedRank(
        job_id=page.labels.get("job_id", "?"),
        rank=page.labels.get("rank", "?"),
        stage=page.labels.get("stage", "?"),
        gpus_lost=cost[0] if cost else float("nan"),
        alert=page.alert,
        after_seconds=after_seconds,
    )


def wrong_names(pages: list[ReceivedAlert], rank: str, stage: str) -> list[str]:
    """Return which others than *rank* in *stage* the straggler alert named."""
    named = [page.labels for page in pages if page.alert == STRAGGLER and page.status == "firing"]
    return [
        f"rank {labels.get('rank')} in {labels.get('stage')}"
        for labels in named
        if (labels.get("rank"), labels.get("stage")) != (rank, stage)
    ]
