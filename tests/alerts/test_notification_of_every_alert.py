"""Whatever alert fires, with whatever names, its notification is complete and its links work."""

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from devstack.parts import ALERTMANAGER_CONFIG
from tests.alerts.receivers import (
    Promised,
    Sender,
    elsewhere,
    lines,
    links,
    matchers,
    promised,
    slack,
)

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
