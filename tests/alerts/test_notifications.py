"""What a real Alertmanager sends to Slack and PagerDuty, word for word, and of every alert."""

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.links import uid
from devstack.parts import ALERTMANAGER_CONFIG
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


# ---- Whatever alert fires, with whatever names -------------------------------------------------

CASES = sorted(Path(__file__).parent.glob("*.yaml"))
# Every alert that a promtool test expects, each in a group of its own.
EVERY = [
    Promised({**one.labels, "cluster": f"c{number}"}, one.annotations)
    for number, one in enumerate(
        one for case in CASES for one in promised(case.stem) if "summary" in one.annotations
    )
]
# Warnings that page nobody unless you route them so.
NOTES = ["RankskewJobSlower"]
MOST_OF_TITLE = 120


@pytest.fixture(scope="module")
def every_message(sender: Sender) -> list[dict[str, Any]]:
    """What Slack is sent of every alert, and PagerDuty of all that is urgent."""
    begin = len(sender.receivers.sent)
    sender.post(*(one.posted(None) for one in EVERY))
    urgent = sum(
        one.labels["severity"] != "info" and one.labels["alertname"] not in NOTES for one in EVERY
    )
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        sent = [each for each in sender.receivers.sent[begin:] if re.match(r"c\d+/", each[1])]
        if len(sent) == len(EVERY) + urgent:
            return [{receiver: message} for receiver, _, message in sent]
        time.sleep(0.05)
    raise sender.process.failure(f"sent {len(sent)} of {len(EVERY) + urgent} messages")


def test_every_message_is_complete(every_message: list[dict[str, Any]]) -> None:
    """A first line for a phone, whole sentences, a runbook, a silence; nothing is left empty."""
    messages = [slack(sent) for sent in every_message if "slack" in sent]

    assert len(messages) == len(EVERY)
    for message in messages:
        assert 10 < len(message["title"]) <= MOST_OF_TITLE
        assert "\n" not in message["title"]
        text = lines(message)
        assert len(text) in (1, 2, 3)
        assert text[0].startswith(("Since ", "Node "))
        assert text[0].endswith(".")
        assert all(line.startswith(("First: ", "Diagnose: `rankskew ")) for line in text[1:])
        assert not re.search(r"no value|\{\{|  |\( *\)| ,|PID ,|None", message["title"] + text[0])
        assert list(links(message)) == ["Dashboard", "Runbook", "Silence"]


def test_every_incident_is_one_that_pagerduty_takes(every_message: list[dict[str, Any]]) -> None:
    """A known severity, a summary within its limit, and no link that leads nowhere."""
    events = [sent["pagerduty"] for sent in every_message if "pagerduty" in sent]

    assert events
    for event in events:
        assert event["payload"]["severity"] in ("critical", "warning")
        assert 0 < len(event["payload"]["summary"]) <= 1024
        assert event["dedup_key"]
        assert all(link["href"].startswith("https://") for link in event["links"])
    assert len({event["dedup_key"] for event in events}) == len(events)


def test_hostile_name_neither_calls_a_channel_nor_breaks_a_link(sender: Sender) -> None:
    """Any job can be silenced and looked at, and no name is more than a name."""
    job = '<!channel> & "a+b"/é'
    of_job = next(one for one in EVERY if "rank" not in one.labels and "job_id" in one.labels)
    alert = Promised(
        {**of_job.labels, "job_id": job, "cluster": "c d"},
        {"summary": f"Job {job} is slow.", "runbook_url": "https://example.org/x"},
    )
    message = slack(sender.sends([alert]))
    dashboard = links(message)["Dashboard"]

    assert not any(line.startswith("Diagnose") for line in lines(message))
    assert message["title"] == 'c d: Job ‹!channel› & "a+b"/é is slow.'
    assert (
        "var-job_id=%3C%21channel%3E%20%26%20%22a%2Bb%22%2F%C3%A9&var-cluster=c%20d&" in dashboard
    )
    assert "%5C%22a%2Bb%5C%22" in links(message)["Silence"]
    assert silenced(sender, links(message)["Silence"]) == [alert.labels]
    headed = Promised({**alert.labels, "cluster": "<!here>"}, {"headline": "rank 2 slow"})
    title = slack(sender.sends([headed]))["title"]
    assert title == '‹!here›/‹!channel› & "a+b"/é: rank 2 slow'


def test_silence_is_of_this_alert_only(sender: Sender) -> None:
    """The form that the link opens is filled with what mutes this rank of this job, no other."""
    alerts = promised("notifications", "RankskewStraggler", job_id="demo")
    first, *others = (
        elsewhere(alerts, job_id="muted", cluster=cluster, rank=rank)[0]
        for cluster, rank in (("a", "2"), ("b", "2"), ("c", "3"))
    )
    sender.sends(others[:1])
    sender.sends(others[1:])

    assert silenced(sender, links(slack(sender.sends([first])))["Silence"]) == [first.labels]


def silenced(sender: Sender, silence_url: str) -> list[dict[str, str]]:
    """Return the labels of the active alerts that the silence behind *silence_url* would mute."""
    each = re.findall(r'\w+="(?:[^"\\]|\\.)*"', matchers(silence_url))
    assert matchers(silence_url) == "{" + ",".join(each) + "}"
    query = ["amtool", f"--alertmanager.url={sender.url}", "--output=json", "alert", "query", *each]
    done = subprocess.run(query, capture_output=True, text=True, check=True)
    return [alert["labels"] for alert in json.loads(done.stdout)]


def test_many_alerts_are_no_wall_of_text(sender: Sender) -> None:
    """A node full of late ranks is ten lines, their number, and one command."""
    one = promised("notifications", "RankskewStraggler", job_id="demo")
    many = [alert for rank in range(30) for alert in elsewhere(one, job_id="many", rank=f"{rank}")]
    message = slack(sender.sends(many))

    assert message["title"].startswith("many, 30 alerts: ")
    assert len(lines(message)) == 11


def test_alert_without_annotations_has_its_name(sender: Sender) -> None:
    """Your own alerts may go the same way, and have what they have."""
    labels = {"alertname": "DiskFull", "severity": "warning", "cluster": "own"}
    alert = Promised({**labels, "instance": "store:9100"}, {})

    assert slack(sender.sends([alert]))["title"] == "own/store: DiskFull"
    ended = slack(sender.sends(ended=[alert]))
    assert ended["title"] == "Resolved after 12m30s: own/store: DiskFull"


def test_secrets_are_in_files_of_their_own() -> None:
    """The shipped configuration can be committed: it names the files with the URL and the key."""
    receivers = yaml.safe_load(ALERTMANAGER_CONFIG.read_text())["receivers"]
    [page] = [receiver for receiver in receivers if receiver["name"] == "page"]

    assert page["slack_configs"][0]["api_url_file"].startswith("/etc/alertmanager/")
    assert page["pagerduty_configs"][0]["routing_key_file"].startswith("/etc/alertmanager/")
