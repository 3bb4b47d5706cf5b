"""A whole job that became slower: as its judge tells it, or as the length of its steps shows."""

from pathlib import Path

from rankskew.diagnose.from_prometheus import CHANGES
from tests.alerts.promtool import answers
from tests.rankskew.diagnose.prometheus.jobs import alert, ask, straggler
from tests.rankskew.top import fake_prometheus as fake
from tests.rankskew.top.fake_prometheus import NOW, Series, series

SLOWER = {"job:rankskew_step_seconds:max": [0.5] * 10 + [9.0] + [0.5] * 109 + [0.7] * 60}


def test_job_that_became_slower_as_a_whole() -> None:
    """When, by how much, and what began at that time; a single long step is no level."""
    began = series("ALERTS_FOR_STATE", NOW - 3000, alertname="RankskewGpuThrottled")
    started = series("job:rankskew_run_seconds:max", 7000.0)
    said = ask([*fake.job(), alert("RankskewRuntimeDrift"), began, started], over_time=SLOWER)
    slower = next(finding for finding in said.findings if finding.what == "slower")

    assert slower.sentence == (
        "The whole job has become slower: for 59 min, a step has taken 700 ms, before 500 ms."
    )
    assert slower.facts == ("At about that time: RankskewGpuThrottled began.",)
    assert said.events[-1].sentence == "The job started, or restarted."


def changed(scope: str, **figures: float) -> list[Series]:
    """Return what exporters repeat of the judge, as the query tells the figures apart."""
    return [
        series(f"rankskew_job_change_{figure}", value, figure=figure, scope=scope, stage="data")
        for figure, value in figures.items()
    ]


def test_changes_are_asked_for_once_for_all_nodes(tmp_path: Path) -> None:
    """Each node repeats the judge; the figures are told apart by their names."""
    series = [
        {"series": f'{name}{{job_id="j",scope="all",stage="data",instance="{node}"}}', "values": v}
        for node in "nm"
        for name, v in (("rankskew_job_change_gpus", "2x9"), ("rankskew_job_change_ratio", "4x9"))
    ]
    series.append({"series": 'rankskew_job_change_gpus{job_id="k",scope="all"}', "values": "9x9"})
    query = CHANGES.format(where='job_id="j"')
    found = answers(tmp_path, series, [(query, 60.0)], rules=(), groups=())[query, 60.0]

    assert sorted((labels["figure"], value) for labels, value in found) == [
        ("gpus", 2),
        ("ratio", 4),
    ]
    assert {(labels["scope"], labels["stage"]) for labels, _ in found} == {("all", "data")}


def why(instance: str, cause: str, sentence: str) -> Series:
    """Return what an exporter says of the change of all ranks."""
    known = {"cause": cause, "detail": "", "sentence": sentence}
    name = "rankskew_job_change_cause_info"
    return series(name, scope="all", stage="data", instance=instance, **known)


def test_change_that_the_judge_tells_is_the_finding() -> None:
    """It knows stage and onset, so nothing is concluded from the steps; the alert says no more."""
    figures = {"ratio": 2.5, "gpus": 0.8, "since_timestamp_seconds": NOW - 720.0}
    ranks = series("job:rankskew_ranks:sum", 8.0)
    began = series("ALERTS_FOR_STATE", NOW - 700, alertname="RankskewJobSlower")
    drops = series("ALERTS_FOR_STATE", NOW - 900, alertname="RankskewNetworkErrors")
    causes = [
        why("n2:9917", "network", "a port is slow"),
        why("n3:9917", "input", "reads take 8 ms"),
        why("n1:9917", "input", "reads take 9 ms"),
    ]
    told = [*fake.job(), ranks, began, drops, *causes]
    (slower,) = ask([*told, *changed("all", **figures)], over_time=SLOWER).findings
    (of_some,) = ask([*told, *changed("set", **figures)]).findings

    assert slower.sentence == (
        "Data of peer group all has taken 2.50 times as long as before for 12 min; steps take "
        "1.11 times as long: 0.80 GPUs lost."
    )
    assert (slower.what, slower.stage, slower.since_seconds) == ("slower", "data", 720.0)
    assert slower.facts == (
        "Cause on 2 nodes, such as n1: reads take 9 ms.",
        "Cause on n2: a port is slow.",
        "At about that time: RankskewNetworkErrors began.",
    )
    assert of_some.sentence == (
        "Many ranks of the job became slower together: data has taken 2.50 times as long for "
        "12 min."
    )


def test_late_rank_explains_a_slower_job() -> None:
    """Then the rank is the finding, and the rise an event; too few points have no level."""
    samples = [*straggler(), series("job:rankskew_slowdown:max", 1.4)]
    said = ask(samples, over_time=SLOWER)

    assert [finding.rank for finding in said.findings] == [6]
    assert any("1.40 times as long" in event.sentence for event in said.events)
    few = ask(samples, over_time={"job:rankskew_step_seconds:max": [0.5] * 4 + [0.7] * 5})
    assert not any("times as long" in event.sentence for event in few.events)
