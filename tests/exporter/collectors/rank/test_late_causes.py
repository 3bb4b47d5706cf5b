"""A late rank's own exporter shows why it is late, in words and in figures."""

from typing import Any

from exporter.causes.model import UNKNOWN, Cause
from exporter.collectors.rank.late_causes import SENTENCE_CHARACTERS, LateCausesCollector
from exporter.evidence.late_causes import LateCauses, RankPlace
from tests.exporter.collectors.expose import expose, shown
from tests.exporter.running import promtool_check_metrics

HERE = RankPlace("all", "node-7", "3", "GPU-3f6d", "4711")
HOT = Cause(
    "slow_device",
    "clocks",
    0.9,
    "its SM clock is 1.41 GHz, its peers' 1.95: too hot",
    "`nvidia-smi -q -i UUID` on NODE",
    "sm_clock_hertz",
    1.41e9,
    1.95e9,
)
WHO = 'job_id="llama",peer_group="all",rank="2"'


def late(*causes: Cause, job_id: str = "llama", into: LateCauses | None = None) -> LateCauses:
    """Return what is known where ranks, from 2 on, are late for *causes*."""
    found = into or LateCauses()
    for rank, each in enumerate(causes, start=2):
        found.take((job_id, rank), each, HERE, 0.0, 60.0)
    return found


def lines(found: LateCauses, name: str = "") -> list[str]:
    return shown(LateCausesCollector(found), f"rankskew_late_cause_{name}")


def cause(**changes: Any) -> Cause:
    known: dict[str, Any] = {"cause": "gc", "detail": "", "share": 0.5}
    return Cause(**{"sentence": "", "first_action": "", **known, **changes})


def test_cause_its_share_and_both_figures_are_shown() -> None:
    """Words as labels of one series; what it accounts for and its figures as values."""
    assert lines(late(HOT)) == [
        'rankskew_late_cause_info{cause="slow_device",detail="clocks",figure="sm_clock_hertz",'
        'first_action="`nvidia-smi -q -i GPU-3f6d` on node-7",gpu="3",job_id="llama",'
        'nodename="node-7",peer_group="all",pid="4711",rank="2",'
        'sentence="its SM clock is 1.41 GHz, its peers\' 1.95: too hot"} 1.0',
        f"rankskew_late_cause_share_ratio{{{WHO}}} 0.9",
        'rankskew_late_cause_figure{figure="sm_clock_hertz",job_id="llama",of="rank",'
        'peer_group="all",rank="2"} 1.41e+09',
        'rankskew_late_cause_figure{figure="sm_clock_hertz",job_id="llama",of="peers",'
        'peer_group="all",rank="2"} 1.95e+09',
    ]


def test_figure_that_is_missing_is_absent() -> None:
    """A rank alone has nobody to be held against, and what a thread does has no number at all."""
    alone = late(cause(figure="gc_ratio", value=0.2))
    unknown = late(cause(cause=UNKNOWN, share=0.0))

    assert [line.rsplit(" ", 1)[1] for line in lines(alone, "figure")] == ["0.2"]
    assert lines(unknown, "figure") == []
    assert lines(unknown, "share") == [f"rankskew_late_cause_share_ratio{{{WHO}}} 0.0"]


def test_at_most_32_ranks_of_each_job_are_shown() -> None:
    """Whatever befalls a node with a thousand ranks, the page stays short, and no job is hidden."""
    found = late(*[HOT] * 2, job_id="b", into=late(*[HOT] * 40, job_id="a"))
    infos = lines(found, "info")

    assert [sum(f'job_id="{job}"' in line for line in infos) for job in "ab"] == [32, 2]
    assert len(lines(found)) == 4 * 34


def test_long_texts_are_cut() -> None:
    """At 256 characters, with a sign that something is missing; those as long as that are not."""
    (info,) = lines(late(cause(sentence="s" * 256, first_action="a" * 257)), "info")

    assert f'sentence="{"s" * SENTENCE_CHARACTERS}"' in info
    assert f'first_action="{"a" * 255}…"' in info


def test_page_passes_promtool() -> None:
    """Names, types and help texts are as Prometheus wants them, whatever is in a sentence."""
    quoted = cause(sentence='f"} 1\\', first_action="a\nb")

    assert promtool_check_metrics(expose(LateCausesCollector(late(HOT, quoted)))).returncode == 0
