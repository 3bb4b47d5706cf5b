"""What a real Alertmanager sends to Slack and PagerDuty, word for word."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dashboards.shared.board import uid
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
# Half an hour before the alert, in milliseconds.
DASHBOARD = f"https://grafana.example.com/d/{uid('job')}?var-job_id={{}}&from=1704177030000&to=now"
DEMO = promised("notifications", "RankskewStraggler", job_id="demo")
FACTS = (
    "Since 07:00 UTC. Node gpu-12, GPU 3, PID 20775. 44 % slower than its peers, mostly in data. "
    "Cause: its loader has no batch ready in 93 % of its steps, its peers' in 4 %: "
    "all workers decode (96 % of the delay)."
)
FIRST = "`py-spy dump --pid 20781` (a worker of its loader) on gpu-12"
NIGHTLY = promised("notifications", "RankskewStraggler", job_id="nightly")


def diagnose(job: str, cluster: str = "") -> str:
    """Return the line with the command that says more of *job*."""
    of = f"--cluster {cluster} --job {job}" if cluster else f"--job {job}"
    return f"Diagnose: `rankskew diagnose --prometheus {PROMETHEUS_URL} {of} --at {BEGAN}`"


def test_straggler_is_said_in_five_lines(sender: Sender) -> None:
    """Who, what it costs, since when, where, why, what to do first, what says more; the links."""
    message = slack(sender.sends(DEMO))

    assert message["title"] == "demo: rank 2 slow in data, steps 1.44× slower, $2.60/h lost"
    assert lines(message) == [FACTS, f"First: {FIRST}", diagnose("demo")]
    assert message["color"] == "danger"
    assert list(links(message)) == ["Dashboard", "Runbook", "Silence"]
    assert links(message)["Dashboard"] == message["title_link"] == DASHBOARD.format("demo")
    assert links(message)["Runbook"] == f"{RUNBOOKS}/RankskewStraggler.md"
    assert matchers(links(message)["Silence"]) == (
        '{alertname="RankskewStraggler",instance="gpu-12:9917",job_id="demo",rank="2"}'
    )


def test_pagerduty_has_the_same_in_its_fields(sender: Sender) -> None:
    """The summary is the first line, the incident has severity and links, the details the rest."""
    event = sender.sends(elsewhere(DEMO, job_id="paged"))["pagerduty"]

    assert event["event_action"] == "trigger"
    assert event["payload"] == {
        "summary": "paged: rank 2 slow in data, steps 1.44× slower, $2.60/h lost",
        "source": "Rankskew",
        "severity": "critical",
        "class": "RankskewStraggler",
        "component": "gpu-12:9917",
        "group": "paged",
        "custom_details": {
            "firing": f"{FACTS}\nFirst: {FIRST}\n{diagnose('paged')}",
            "resolved": "",
            "num_firing": "1",
            "num_resolved": "0",
            "first": FIRST,
            "cause": "input",
            "node": "gpu-12:9917",
            "rank": "2",
        },
    }
    assert [link["text"] for link in event["links"]] == ["Dashboard", "Runbook", "Silence"]
    assert event["links"][0]["href"] == DASHBOARD.format("paged")


def test_resolved_says_what_ended_and_how_long_it_lasted(sender: Sender) -> None:
    """The end of an incident is a message of its own, and ends the same incident in PagerDuty."""
    alerts = elsewhere(DEMO, job_id="over")
    began = sender.sends(alerts)
    ended = sender.sends(ended=alerts)
    message = slack(ended)

    assert message["title"] == (
        "Resolved after 12m30s: over: rank 2 slow in data, steps 1.44× slower, $2.60/h lost"
    )
    assert lines(message) == [f"{FACTS} Ended 07:13 UTC."]
    assert message["color"] == "good"
    assert ended["pagerduty"]["event_action"] == "resolve"
    assert ended["pagerduty"]["dedup_key"] == began["pagerduty"]["dedup_key"]
    assert ended["pagerduty"]["payload"]["custom_details"]["resolved"] == lines(message)[0]


def test_several_alerts_are_a_headline_and_a_line_each(sender: Sender) -> None:
    """What the job loses in all comes first; a name in < and > cannot call a channel."""
    message = slack(sender.sends(NIGHTLY))

    assert message["title"] == ("west/nightly, 2 alerts: steps 1.31× slower, $12.50/h lost in all")
    assert lines(message) == [
        "• Rank 5 of job nightly is slow in data; 3.00 of 24 GPUs wait for it. "
        "First: `nfsiostat 1 /data` on gpu-1",
        "• Rank 19 of job nightly is slow in forward; 2.00 of 24 GPUs wait for it. "
        "First: `nvidia-smi -q -i 1` (compare with a peer's) on gpu-3",
        diagnose("nightly", "west"),
    ]
    assert matchers(links(message)["Silence"]) == (
        '{alertname="RankskewStraggler",cluster="west",job_id="nightly"}'
    )
    ended = slack(sender.sends(ended=NIGHTLY))
    assert ended["title"] == "Resolved: west/nightly, 2 alerts"
    assert lines(ended)[0] == (
        "• Resolved after 12m30s: Rank 5 of job nightly is slow in data; "
        "3.00 of 24 GPUs wait for it."
    )


def test_alert_in_place_of_another_is_told_in_full(sender: Sender) -> None:
    """If stage, cause or severity changes, the new alert has its facts and the old one a line."""
    old, new = elsewhere(DEMO, job_id="both", severity="warning"), elsewhere(DEMO, job_id="both")
    sender.sends(old)
    message = slack(sender.sends(new, ended=old))

    assert message["title"].startswith("both: rank 2 slow in data, ")
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
            "chat: node gpu-7 slow in forward, steps 1.20× slower, $1.25/h lost",
            [
                "Since 06:59 UTC. Node gpu-7, 2 ranks. 20 % slower than peers on other nodes, "
                "mostly in forward. Cause at rank 2: it waits 34 % of the time for a CPU, "
                "its peers 1 %.",
                "First: see what else runs with `top` on gpu-7",
            ],
        ),
        (
            promised("notifications", "RankskewJobHung"),
            "stuck: hung, rank 1 stuck in data, $10.00/h lost",
            [
                "Since 07:00 UTC. Job stuck has not finished a step for 2m 25s; its GPUs are idle. "
                "It waits for rank 1 on gpu-4:9917, GPU 1.",
                "First: `py-spy dump --pid 31337` on gpu-4, before you kill anything",
            ],
        ),
        (
            elsewhere(NIGHTLY[:1], job_id="one"),
            "west/one: rank 5 slow in data, steps 1.31× slower, $7.50/h lost",
            [
                "Since 06:59 UTC. Node gpu-1, PID 411. 20 % slower than its peers, mostly in data. "
                "71 % of that stage is in `Corpus.‹lambda› (corpus.py:41)`. Cause: it waits "
                "61 % of the time for /data (nfs), its peers 3 % (81 % of the delay).",
                "First: `nfsiostat 1 /data` on gpu-1",
            ],
        ),
        (
            elsewhere(NIGHTLY[1:], job_id="two"),
            "west/two: rank 19 slow in forward, steps 1.31× slower, $5.00/h lost",
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
        (
            promised("RankskewExporterDown")[:1],
            "n: The exporter at n:9917 is down.",
            [
                "Since 07:00 UTC. Nothing is known about its node, the GPUs and the ranks there. "
                "Training is not affected."
            ],
        ),
        (
            elsewhere(promised("RankskewRotatingImbalance"), cluster="info"),
            "info: Job j waits for a different rank in each step.",
            [
                "Since 07:00 UTC. No rank is to blame, but 25% of its GPUs wait, mostly in data.",
            ],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_alerts_read_as_well(
    sender: Sender, alerts: list[Promised], title: str, text: list[str]
) -> None:
    """One template says what each alert knows, and leaves out what it does not."""
    message = slack(sender.sends(alerts))

    of = alerts[0].labels
    more = [diagnose(of["job_id"], of.get("cluster", ""))] if "job_id" in of else []

    assert message["title"] == title
    assert lines(message) == [*text, *more]


def test_examples_in_the_readme_are_what_was_sent(sender: Sender) -> None:
    """The documentation shows messages that Alertmanager has sent, word for word."""
    alerts = elsewhere(DEMO, job_id="shown")
    firing = sender.sends(alerts)
    resolved = sender.sends(ended=alerts)
    text, pagerduty = (
        re.findall(rf"^```{language}\n(.+?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
        for language in ("text", "json")
    )

    assert text == [as_shown(firing), as_shown(resolved)]
    assert [json.loads(example) for example in pagerduty] == [
        json.loads(json.dumps(firing["pagerduty"]["payload"]).replace("shown", "demo"))
    ]


def as_shown(sent: dict[str, Any]) -> str:
    """Return a message as Slack shows it."""
    message = slack(sent)
    shown = [message["title"], *lines(message), " · ".join(links(message))]
    return "".join(f"{line}\n" for line in shown).replace("shown", "demo")


def test_alert_without_a_job_leads_to_its_node(sender: Sender) -> None:
    """The link to the dashboard opens what the alert is about."""
    [down] = elsewhere(promised("RankskewExporterDown")[:1], cluster="west")
    url = links(slack(sender.sends([down])))["Dashboard"]

    assert f"/d/{uid('node')}?var-instance=n%3A9917&var-cluster=west&from=" in url
