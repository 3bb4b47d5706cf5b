"""Samples of ALERTS become a list of what fired, from when to when."""

from exporter.replay.alerts import Alert, alerts
from exporter.replay.promtool import Sample


def alert(name: str = "RankskewStraggler", **labels: str) -> Sample:
    """Return a firing alert."""
    said = {"__name__": "ALERTS", "alertname": name, "alertstate": "firing", "severity": "warning"}
    return Sample(said | labels, 1.0)


LATE = {"job_id": "j", "rank": "3", "instance": "node0", "peer_group": "pp0"}


def test_firing_goes_on_under_another_stage_cause_or_severity() -> None:
    """These change and one evaluation is missed, and it is one alert, as it fired last."""
    found = alerts(
        {
            0.0: [],
            15.0: [alert(**LATE, stage="data", cause="unknown")],
            30.0: [],
            45.0: [alert(**LATE, stage="forward", cause="cpu")],
            60.0: [alert(**LATE | {"severity": "critical"}, stage="forward", cause="cpu")],
            75.0: [],
            90.0: [],
        }
    )

    labels = {"rank": "3", "peer_group": "pp0", "instance": "node0", "stage": "forward"}
    assert found == [
        Alert("RankskewStraggler", "critical", labels | {"cause": "cpu"}, 15.0, 75.0),
    ]


def test_second_time_is_a_second_alert() -> None:
    """An alert that was away for two evaluations had ended; one at the end has not."""
    on, off = [alert(**LATE)], list[Sample]()
    found = alerts({0.0: on, 15.0: off, 30.0: off, 45.0: on, 60.0: on})

    assert [(one.fired_s, one.cleared_s) for one in found] == [(0.0, 15.0), (45.0, None)]


def test_each_rank_and_reason_is_an_alert_of_its_own() -> None:
    """They come in the order in which they fired, with what they are about."""
    found = alerts(
        {
            0.0: [alert("RankskewNotJudgeable", job_id="j", reason="no_sync")],
            15.0: [alert(**LATE | {"rank": "4"}), alert(**LATE)],
        }
    )

    assert [(one.alert, one.labels.get("rank"), one.labels.get("reason")) for one in found] == [
        ("RankskewNotJudgeable", None, "no_sync"),
        ("RankskewStraggler", "3", None),
        ("RankskewStraggler", "4", None),
    ]
