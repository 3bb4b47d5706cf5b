"""A report with all that one can have, for the writers."""

from exporter.live.sentences import LineView
from rankskew.diagnose.loss import loss
from rankskew.diagnose.model import Event, Finding, Place, Report
from rankskew.diagnose.report import advised

PLACE = Place("n2", "n2:9917", "2", "GPU-6", 4006)


def late(**changes: object) -> Finding:
    """Return a late rank with its advice, and with *changes*."""
    known: dict[str, object] = {
        "what": "input",
        "sentence": "Rank 6 is slow loading data; 1.65 of 8 GPUs wait for it.",
        "rank": 6,
        "ranks": (6,),
        "place": PLACE,
        "stage": "data",
        "kind": "persistent",
        "ratio": 0.35,
        "gpus_lost": 1.65,
        "since_seconds": 240.0,
        "lines": (LineView("data", "Corpus.read (corpus.py:41)", 0.87),),
        "cause": "input",
        "cause_text": "3 of its workers never wait, 0 of its peers'",
        "detail": "workers",
        "explains": 0.97,
        "first": "`py-spy dump --pid 4006` on n2",
    }
    return advised(Finding(**(known | changes)), "llama")  # type: ignore[arg-type]


def report(*findings: Finding, state: str = "straggler", **changes: object) -> Report:
    """Return a report with *findings*, and with *changes*."""
    known: dict[str, object] = {
        "source": "http://p:9090",
        "job_id": "llama",
        "state": state,
        "sentence": "No rank is late.",
        "at_seconds": 1_795_420_800.0,
        "world_size": 8,
        "loss": loss({"persistent": 1.66, "common": 0.344}, {6: {"data": 1.6, "forward": 0.05}}),
        "slowdown": 1.33,
        "gpu_hour_price": 2.5,
        "findings": findings,
        "events": (Event(240.0, "Rank 6 became slow in data."),),
        "unjudged": ("Only 90% of the job's ranks and steps are judged.",),
    }
    return Report(**(known | changes))  # type: ignore[arg-type]
