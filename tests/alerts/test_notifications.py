"""What a real Alertmanager sends to Slack and PagerDuty, word for word."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dashboards.links import uid
from tests.alerts.receivers import (
    BEGAN,
    PROMETHEUS_URL,
    Promised,
    Sender,
    elsewhere,
    lines,
    links,
    matchers,
    promised,
    slack,
)

README = Path(__file__).parents[2] / "alerts" / "README.md"
RUNBOOKS = "https://github.com/rankskew/rankskew/blob/main/alerts/runbooks"
GRAFANA = "https://grafana.example.com/d"
# Half an hour before the alert, and ten minutes after its end, in milliseconds.
SINCE, UNTIL = "from=1704177030000", 1704180180000
DEMO = promised("notifications", "RankskewStraggler", job_id="demo")
NIGHTLY = promised("notifications", "RankskewStraggler", job_id="nightly")


def diagnose(job: str, cluster: str = "") -> str:
    """Return the line with the command that says more of *job*."""
    of = f"--cluster {cluster} --job {job}" if cluster else f"--job {job}"
    return f"Diagnose: `rankskew diagnose --prometheus {PROMETHEUS_URL} {of} --at {BEGAN}`"


def as_shown(sent: dict[str, Any]) -> str:
    """Return a message as Slack shows it."""
    message = slack(sent)
    shown = [message["title"], *lines(message), " · ".join(links(message))]
    return "".join(f"{line}\n" for line in shown).replace("shown", "demo")


def test_straggler_is_said_as_the_readme_shows_it(sender: Sender) -> None:
    """Who, what it costs, since when, where, why, what to do first, what says more; the links.

    PagerDuty has the same in its fields; its end is a message of its own, and ends it there, too.
    """
    alerts = elsewhere(DEMO, job_id="shown")
    firing, ended = sender.sends(alerts), sender.sends(ended=alerts)
    text, pagerduty = (
        re.findall(rf"^```{language}\n(.+?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
        for language in ("text", "json")
    )
    message, event = slack(firing), firing["pagerduty"]

    assert text == [as_shown(firing), as_shown(ended)]
    assert [json.loads(example) for example in pagerduty] == [
        json.loads(json.dumps(event["payload"]).replace("shown", "demo"))
    ]
    assert (message["color"], slack(ended)["color"]) == ("danger", "good")
    dashboard = f"{GRAFANA}/{uid('rank')}?var-job_id=shown&var-rank=2&{SINCE}"
    assert links(message)["Dashboard"] == message["title_link"] == f"{dashboard}&to=now"
    assert event["links"][0]["href"] == f"{dashboard}&to=now"
    assert links(slack(ended))["Dashboard"] == f"{dashboard}&to={UNTIL}"
    assert links(message)["Runbook"] == f"{RUNBOOKS}/RankskewStraggler.md"
    assert matchers(links(message)["Silence"]) == (
        '{alertname="RankskewStraggler",instance="gpu-12:9917",job_id="shown",rank="2"}'
    )
    assert event["event_action"] == "trigger"
    assert ended["pagerduty"]["event_action"] == "resolve"
    assert ended["pagerduty"]["dedup_key"] == event["dedup_key"]
    assert ended["pagerduty"]["payload"]["custom_details"]["resolved"] == lines(slack(ended))[0]


def test_several_alerts_are_a_headline_and_a_line_each(sender: Sender) -> None:
    """What the job loses in all comes first; a name in < and > cannot call a channel."""
    message = slack(sender.sends(NIGHTLY))

    assert message["title"] == ("west/nightly, 2 alerts: steps 1.31× slower, $12.50/h lost in all")
    assert lines(message) == [
        "• Rank 5 of job nightly is slow loading data; 3.00 of 24 GPUs wait for it. "
        "First: `nfsiostat 1 /data` on gpu-1",
        "• Rank 19 of job nightly is slow in the forward pass; 2.00 of 24 GPUs wait for it. "
        "First: `nvidia-smi -q -i 1` (compare with a peer's) on gpu-3",
        diagnose("nightly", "west"),
    ]
    assert matchers(links(message)["Silence"]) == (
        '{alertname="RankskewStraggler",cluster="west",job_id="nightly"}'
    )
    assert f"/{uid('job')}?var-job_id=nightly&var-cluster=west&" in links(message)["Dashboard"]
    ended = slack(sender.sends(ended=NIGHTLY))
    assert ended["title"] == "Resolved: west/nightly, 2 alerts"
    assert lines(ended)[0] == (
        "• Resolved after 12m30s: Rank 5 of job nightly is slow loading data; "
        "3.00 of 24 GPUs wait for it."
    )


def test_alert_in_place_of_another_is_told_in_full(sender: Sender) -> None:
    """If stage, cause or severity changes, the new alert has its facts and the old one a line."""
    old, new = elsewhere(DEMO, job_id="both", severity="warning"), elsewhere(DEMO, job_id="both")
    sender.sends(old)
    message = slack(sender.sends(new, ended=old))

    assert message["title"].startswith("both: rank 2 slow loading data, ")
    assert message["color"] == "danger"
    assert [line[:30] for line in lines(message)] == [
        "Since 07:00 UTC. Node gpu-12, ",
        "First: `py-spy dump --pid 2078",
        "• Resolved after 12m30s: Rank ",
        "Diagnose: `rankskew diagnose -",
    ]


@pytest.mark.parametrize(
    ("alerts", "title", "text"),
    [
        (
            promised("notifications", "RankskewSlowNode"),
            "chat: node gpu-7 slow in the forward pass, steps 1.20× slower, $1.25/h lost",
            [
                "Since 06:59 UTC. Node gpu-7, 2 ranks. 20 % slower than peers on other nodes, "
                "mostly in forward. Cause at rank 2: it waits 34 % of the time for a CPU, "
                "its peers 1 %.",
                "First: see what else runs with `top` on gpu-7",
            ],
        ),
        (
            elsewhere(NIGHTLY[1:], job_id="two"),
            "west/two: rank 19 slow in the forward pass, steps 1.31× slower, $5.00/h lost",
            [
                "Since 1969-12-31 22:00 UTC. Node gpu-3, GPU 1, PID 977. 10 % slower than its "
                "peers, mostly in forward. "
                "Cause: nothing measured explains it (its SM clock 21 %, its CPU 8 %).",
                "First: `nvidia-smi -q -i 1` (compare with a peer's) on gpu-3",
            ],
        ),
        (
            elsewhere(promised("RankskewRanksMissing", state="silent")[:1], cluster="lost"),
            "lost: Rank 2 of job j has gone silent.",
            [
                "Since 07:00 UTC. Rank 2 on m has not reported for 1m 15s; "
                "its last event: checkpoint began 1m 30s ago. "
                "Its process is dead, stopped, or cannot reach the exporter.",
                "First: `ps -p PID`, then `dmesg -T` on m",
            ],
        ),
    ],
    ids=["with its parts", "without a cause", "without parts"],
)
def test_alert_says_what_it_knows(
    sender: Sender, alerts: list[Promised], title: str, text: list[str]
) -> None:
    """One template for all, which leaves out what an alert does not know."""
    message = slack(sender.sends(alerts))
    of = alerts[0].labels

    assert message["title"] == title
    assert lines(message) == [*text, diagnose(of["job_id"], of.get("cluster", ""))]


def test_alert_without_a_job_leads_to_its_node(sender: Sender) -> None:
    """The link to the dashboard opens what the alert is about."""
    [down] = elsewhere(promised("RankskewExporterDown")[:1], cluster="west")
    url = links(slack(sender.sends([down])))["Dashboard"]

    assert f"/d/{uid('node')}?var-instance=n%3A9917&var-cluster=west&from=" in url
