"""A Prometheus that holds what a test gives it."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from tests.rankskew.servers import Answer, Sent, json_answer, serving

NOW: Final = 2000.0
WHO: Final = {"rank": "6", "instance": "n2:9917", "peer_group": "all"}
ALWAYS: Final = ((0.0, 1e12),)
# A name, a regular expression of names, and the labels after them.
_SELECTOR: Final = re.compile(
    r'(?:\b([A-Za-z_]+:?[A-Za-z_]+:?[a-z0-9_]*))?\{(?:__name__=~"([^"]*)",?)?'
)
_EQUAL: Final = re.compile(r'(\w+)="([^"]*)"')
_WINDOW: Final = re.compile(r"_over_time\(.*\[(\d+)ms\]")

Series = tuple[dict[str, str], float]
# Labels, spans with a value (their ends excluded), and the value or a function of the time.
Written = tuple[Mapping[str, str], Sequence[tuple[float, float]], float | Callable[[float], float]]


@dataclass
class FakePrometheus:
    """Answers with the series that *held* returns for a query's form; *asked* keeps the forms.

    It refuses more than *most* points of a series, with the message *refused*.
    """

    held: Callable[[dict[str, str]], Iterable[Written]]
    most: int = 11_000
    refused: str = "exceeded maximum resolution of 11,000 points per timeseries"
    asked: list[dict[str, str]] = field(default_factory=list)

    def answer(self, sent: Sent) -> Answer:
        self.asked.append(sent.form)
        result: list[dict[str, Any]]
        if sent.path == "/api/v1/query":
            at = float(sent.form.get("time", NOW))
            points = ((labels, _points(each, at)) for labels, *each in self.held(sent.form))
            result = [{"metric": labels, "value": each[0]} for labels, each in points if each]
        else:
            start, end, step = (float(sent.form[name]) for name in ("start", "end", "step"))
            many = int((end - start) / step + 1e-9) + 1
            if many > self.most:
                return json_answer({"status": "error", "error": self.refused}, 422)
            ranges = (
                (labels, _points(each, start, step, many)) for labels, *each in self.held(sent.form)
            )
            result = [{"metric": labels, "values": each} for labels, each in ranges if each]
        return json_answer({"status": "success", "data": {"result": result}})

    @contextmanager
    def serve(self) -> Iterator[str]:
        with serving(self.answer) as url:
            yield url


def _points(
    written: Sequence[Any], start: float, step: float = 1.0, many: int = 1
) -> list[tuple[float, str]]:
    spans, value = written
    times = (
        start + number * step
        for begin, end in spans
        for number in range(
            max(0, ceil((begin - start) / step)), min(many, ceil((end - start) / step))
        )
    )
    return [(at, str(value(at) if callable(value) else value)) for at in times]


def recorded(*samples: Series) -> FakePrometheus:
    """Hold *samples*, and answer a query with those that its first selector matches.

    Operators other than count() are ignored: *samples* must be what they would leave.
    """

    def held(form: dict[str, str]) -> list[Written]:
        query = form["query"]
        found: list[Written] = [
            (labels, ALWAYS, value) for labels, value in samples if _has(query, labels)
        ]
        return [({}, ALWAYS, len(found))] * bool(found) if query.startswith("count(") else found

    return FakePrometheus(held)


def past(written: Mapping[str, Sequence[Written]], **limits: Any) -> FakePrometheus:
    """Answer a query of a range with the series of the first key that is in its expression."""

    def held(form: dict[str, str]) -> Iterator[Written]:
        query = form["query"]
        key = next((key for key in written if key in query), None)
        window = _WINDOW.search(query)
        back = float(window[1]) / 1000 if window else 0.0
        for labels, spans, value in written[key] if key and "start" in form else ():
            yield labels, [(begin, end + back) for begin, end in spans], value

    return FakePrometheus(held, **limits)


def series(name: str, value: float = 1.0, /, **labels: str) -> Series:
    return {"__name__": name, "cluster": "eu", "job_id": "llama"} | labels, value


def _has(query: str, labels: dict[str, str]) -> bool:
    match = _SELECTOR.search(query)
    if match is None:
        return False
    pattern = match[2] or re.escape(match[1] or "")
    wanted = _EQUAL.findall(query[match.end() :].partition("}")[0])
    return re.fullmatch(pattern, labels["__name__"]) is not None and all(
        labels.get(name, "") == value for name, value in wanted
    )


# ---- What the rules record of a job --------------------------------------------------------------


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


def late() -> list[Series]:
    """Return what the rules record of late rank 6, and what its exporter exposes."""
    return [
        series("rank:rankskew_late:ratio", 0.35, kind="persistent", stage="data", **WHO),
        series("rank:rankskew_gpus_lost:sum", 1.65, **WHO),
        series("rank:rankskew_told_gpus_lost:sum", 1.65, **WHO),
        series("job_severity:rankskew_told:max5m", 0.2, severity="critical"),
        series("rankskew_late_since_timestamp_seconds", NOW - 240, **WHO),
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
    return [
        series("rankskew_late_cause_info", **(who | info | more)),
        series("rankskew_late_cause_share_ratio", share, **who),
        series("rankskew_late_cause_figure", 3.0, of="rank", figure=info["figure"], **who),
        series("rankskew_late_cause_figure", 0.0, of="peers", figure=info["figure"], **who),
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


def losses(**kinds: float) -> list[Series]:
    name = "job_kind:rankskew_gpus_lost:sum"
    return [series(name, gpus, kind=kind) for kind, gpus in kinds.items()]


def straggler() -> list[Series]:
    """Return a job whose rank 6 is late loading data, and why."""
    return [
        *job(state="straggler", gpus_lost=2.0),
        *late(),
        *cause(),
        *rank(6, "n2:9917"),
        *losses(persistent=1.6, rotating=0.06, common=0.34),
        series("rank_stage:rankskew_gpus_lost:sum", 1.6, stage="data", **WHO),
        series("rank_stage:rankskew_gpus_lost:sum", 0.05, stage="forward", **WHO),
        series("rankskew_late_line_ratio", 0.87, stage="data", place="f (c.py:1)", **WHO),
    ]
