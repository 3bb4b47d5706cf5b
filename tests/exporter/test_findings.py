"""What fired becomes findings: one for each time that an alert fired for a rank, node or job."""

from math import nan

from exporter.findings import Finding, findings, not_judgeable, source
from exporter.promtool import Sample


def alert(name: str = "RankskewStraggler", **labels: str) -> Sample:
    """Return a firing alert."""
    return Sample(
        {"__name__": "ALERTS", "alertname": name, "alertstate": "firing", "severity": "warning"}
        | labels,
        1.0,
    )


def recorded(name: str, value: float = 1.0, **labels: str) -> Sample:
    """Return a recorded series."""
    return Sample({"__name__": name, "job_id": "j"} | labels, value)


LATE = {"rank": "3", "instance": "node0", "peer_group": "pp0"}


def lost(gpus: float, **labels: str) -> Sample:
    """Return what the rules record for a named rank."""
    return recorded("rank:rankskew_gpus_lost:mean1m", gpus, **(LATE | labels))


def test_firing_is_one_finding_with_its_main_stage_and_mean_cost() -> None:
    """A change of stage or one missed evaluation ends nothing; the cost is the mean while there."""
    found = findings(
        {
            0.0: [],
            15.0: [alert(**LATE, stage="data"), lost(2.0), lost(9.0, rank="4")],
            30.0: [],
            45.0: [alert(**LATE, stage="forward"), alert(**LATE, stage="data"), lost(4.0)],
            60.0: [alert(**LATE, stage="forward"), lost(nan)],
            75.0: [alert(**LATE, stage="forward"), alert(**LATE, stage="backward")],
            90.0: [],
        }
    )

    assert found == [
        Finding(
            alert="RankskewStraggler",
            severity="warning",
            kind="persistent",
            rank=3,
            peer_group="pp0",
            instance="node0",
            stage="forward",
            onset_s=15.0,
            cleared_s=90.0,
            gpus_lost=3.0,
        )
    ]


def test_second_time_is_a_second_finding() -> None:
    """An alert that was away for two evaluations had ended; one at the end has not."""
    on, off = [alert(**LATE, stage="data")], list[Sample]()
    found = findings({0.0: on, 15.0: off, 30.0: off, 45.0: on, 60.0: on})

    assert [(one.onset_s, one.cleared_s) for one in found] == [(0.0, 15.0), (45.0, None)]


def test_each_kind_has_its_cost() -> None:
    """A node costs what its ranks cost, a kind what is recorded for it, others what nobody says."""
    rotating, node, throttled = findings(
        {
            0.0: [
                alert("RankskewSlowNode", instance="node0"),
                lost(2.0),
                lost(3.0, rank="4"),
                lost(5.0, rank="9", instance="node1"),
                alert("RankskewRotatingImbalance"),
                recorded("job_kind:rankskew_gpus_lost:mean1m", 1.5, kind="rotating"),
                recorded("job_kind:rankskew_gpus_lost:mean1m", 7.0, kind="group"),
                alert("RankskewZThrottled", **LATE),
                alert("RankskewNotJudgeable", reason="no_sync"),
            ]
        }
    )

    assert (node.kind, node.rank, node.instance, node.gpus_lost) == ("node", None, "node0", 5.0)
    assert (rotating.kind, rotating.instance, rotating.gpus_lost) == ("rotating", None, 1.5)
    assert (throttled.kind, throttled.rank, throttled.gpus_lost) == ("other", 3, None)


def test_alert_that_nothing_can_be_said_is_no_finding() -> None:
    """It is a reason, as soon as it stood for half of the run."""
    samples = [alert("RankskewNotJudgeable", reason="no_sync")]
    why = recorded("job_reason:rankskew_not_judgeable:bool", reason="no_sync")
    evaluations = {0.0: [why], 15.0: [*samples, why], 30.0: samples}

    assert findings(evaluations) == []
    assert not_judgeable(evaluations) == ["no_sync"]
    assert not_judgeable(evaluations | {45.0: [], 60.0: []}) == []


def test_source_is_who_spoke_most() -> None:
    """The join, the means, or nobody."""
    spoke = {
        who: [recorded("job_source:rankskew_gpus_lost:info", source=who)]
        for who in ("join", "window")
    }

    assert source({0.0: [], 15.0: []}) == "none"
    assert source({0.0: spoke["window"], 15.0: spoke["join"], 30.0: spoke["join"]}) == "join"
