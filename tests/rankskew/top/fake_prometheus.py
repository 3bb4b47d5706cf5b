"""A Prometheus that holds samples and answers the few forms of query that `rankskew top` asks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.rankskew.client.servers import Answer, json_answer, serving

NOW: Final = 2000.0
# A name, a regular expression of names, and the labels after them.
_SELECTOR: Final = re.compile(
    r'(?:\b([A-Za-z_]+:?[A-Za-z_]+:?[a-z0-9_]*))?\{(?:__name__=~"([^"]*)",?)?'
)
_EQUAL: Final = re.compile(r'(\w+)="([^"]*)"')

Series = tuple[dict[str, str], float]


def series(name: str, value: float = 1.0, /, **labels: str) -> Series:
    return {"__name__": name, "cluster": "eu", "job_id": "llama"} | labels, value


@dataclass
class FakePrometheus:
    """Answers with all *samples* whose name and labels the first selector of a query has.

    Operators are ignored: it holds only what they would leave. Over a range, a sample has one value
    throughout, or those of *over_time* by its name. *asked* are the queries.
    """

    samples: Sequence[Series]
    asked: list[str] = field(default_factory=list)
    over_time: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def answer(self, path: str, form: dict[str, str]) -> Answer:
        if path not in ("/api/v1/query", "/api/v1/query_range"):
            return json_answer({"status": "error", "error": "not found"}, 404)
        self.asked.append(form["query"])
        found = [
            {"metric": labels, **self._values(labels["__name__"], value, form)}
            for labels, value in self.samples
            if _has(form["query"], labels)
        ]
        return json_answer({"status": "success", "data": {"result": found}})

    def _values(self, name: str, value: float, form: dict[str, str]) -> dict[str, Any]:
        if "start" not in form:
            return {"value": [float(form.get("time", NOW)), str(value)]}
        start, end, step = (float(form[each]) for each in ("start", "end", "step"))
        many = round((end - start) / step) + 1
        values = self.over_time.get(name, [value] * many)
        times = [end - step * (len(values) - 1 - place) for place in range(len(values))]
        return {"values": [[at, str(each)] for at, each in zip(times, values, strict=True)]}

    @contextmanager
    def serve(self) -> Iterator[str]:
        with serving(self.answer) as url:
            yield url


def _has(query: str, labels: dict[str, str]) -> bool:
    match = _SELECTOR.search(query)
    if match is None:
        return False
    pattern = match[2] or re.escape(match[1] or "")
    wanted = _EQUAL.findall(query[match.end() :].partition("}")[0])
    return re.fullmatch(pattern, labels["__name__"]) is not None and all(
        labels.get(name, "") == value for name, value in wanted
    )


def job(
    job_id: str = "llama", state: str | None = "healthy", gpus_lost: float = 0.3, **more: str
) -> list[Series]:
    """Return what the rules record of a job of eight ranks."""
    who = {"job_id": job_id} | more
    recorded = [
        series("job:rankskew_job:group", **who),
        series("job:rankskew_world_size:max", 8, **who),
        series("job:rankskew_gpus_lost:sum", gpus_lost, **who),
        series("job:rankskew_lost_cost_per_hour:sum", 0.75, **who),
        series("job:rankskew_step_seconds:max", 0.542, **who),
        series("job:rankskew_coverage:ratio", 1.0, **who),
    ]
    if state is not None:
        recorded.append(series("job:rankskew_state:info", state=state, **who))
    return recorded


def late(job_id: str = "llama", rank: int = 6, **more: str) -> list[Series]:
    """Return what the rules record of a late rank, and what its exporter exposes."""
    who = {"job_id": job_id, "rank": str(rank), "instance": "n2:9917", "peer_group": "all"} | more
    return [
        series("rank:rankskew_late:ratio", 0.35, kind="persistent", stage="data", **who),
        series("rank:rankskew_gpus_lost:sum", 1.65, **who),
        series("rank:rankskew_told_gpus_lost:sum", 1.65, **who),
        series("job_severity:rankskew_told:max5m", 0.2, job_id=job_id, severity="critical"),
        series("rankskew_late_since_timestamp_seconds", NOW - 240, **who),
    ]


def cause(rank: int = 6, cause: str = "input", share: float = 0.97, **more: str) -> list[Series]:
    """Return what the exporter of a late rank says of its cause."""
    who = {"rank": str(rank), "instance": "n2:9917", "peer_group": "all"}
    info = {
        "cause": cause,
        "detail": "workers",
        "figure": "saturated_workers",
        "sentence": "3 of its workers never wait, 0 of its peers'",
        "first_action": "`py-spy dump --pid 4006` on n2",
    }
    figures = [("rank", 3.0), ("peers", 0.0)]
    return [
        series("rankskew_late_cause_info", **(who | info | more)),
        series("rankskew_late_cause_share_ratio", share, **who),
        *(
            series("rankskew_late_cause_figure", value, of=of, figure=info["figure"], **who)
            for of, value in figures
        ),
    ]


def rank(number: int, instance: str = "n1:9917", **changes: float) -> list[Series]:
    """Return what an exporter exposes of a rank."""
    who = {"rank": str(number), "instance": instance}
    info = {"pid": str(4000 + number), "local_rank": str(number % 4), "gpu_uuid": f"GPU-{number}"}
    age = changes.get("age", 3.0)
    return [
        series("rankskew_rank_info", **info, **who),
        series("rankskew_gpu_rank_info", gpu=str(number % 4), **who),
        series("rankskew_heartbeat_timestamp_seconds", NOW - age, **who),
        series("rankskew_last_step_timestamp_seconds", NOW - age, **who),
        series("rankskew_steps_total", 1200, **who),
        *(
            series("rankskew_stage_seconds_total", seconds, stage=stage, **who)
            for stage, seconds in (("data", 0.1), ("forward", 0.2), ("sync", 0.24))
        ),
    ]
