"""A real Alertmanager pages once per cause and sends complete Slack and PagerDuty messages."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.links import uid
from devstack.parts import ALERTMANAGER_CONFIG
from devstack.process import get
from generators import alert_rules
from tests.alerts.receivers import (
    BEGAN,
    PROMETHEUS_URL,
    Promised,
    Receivers,
    Sender,
    elsewhere,
    lines,
    links,
    matchers,
    promised,
    slack,
)

pytestmark = pytest.mark.e2e

README = Path(__file__).parents[2] / "alerts" / "README.md"
RUNBOOKS = "https://github.com/rankskew/rankskew/blob/main/alerts/runbooks"
GRAFANA = "https://grafana.example.com/d"


@pytest.fixture(scope="module")
def sender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sender]:
    """The shipped configuration in one Alertmanager for all tests, with local receivers."""
    with Receivers() as receivers:
        sender = Sender(tmp_path_factory.mktemp("alertmanager"), receivers)
        with sender.process:
            yield sender


# ---- Who is told ---------------------------------------------------------------------------------


def amtool(*arguments: str) -> str:
    """Return what amtool prints; raise CalledProcessError if amtool fails."""
    return subprocess.run(
        ["amtool", *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def alert(name: str, **labels: str) -> dict[str, str]:
    return {"alertname": f"Rankskew{name}", **labels}


def alerts(names: str, **labels: str) -> list[dict[str, str]]:
    """Return one alert for each of *names*, which omit the prefix `Rankskew`."""
    return [alert(name, **labels) for name in names.split()]


def receiver_of(config: Path, **labels: str) -> str:
    """Return which receiver amtool finds for an alert with *labels*."""
    matchers = [f"{name}={text}" for name, text in labels.items()]
    return amtool("config", "routes", "test", f"--config.file={config}", *matchers)


@pytest.mark.parametrize(
    ("alert", "severity", "receiver"),
    [
        ("Any", "critical", "page"),
        ("Any", "warning", "page"),
        ("Any", "info", "notes"),
        # A warning that can wait for working hours.
        ("JobSlower", "warning", "notes"),
    ],
)
def test_information_wakes_nobody(alert: str, severity: str, receiver: str) -> None:
    """Only what somebody should act on goes to the pager."""
    assert (
        receiver_of(ALERTMANAGER_CONFIG, alertname=f"Rankskew{alert}", severity=severity)
        == receiver
    )


def test_every_alert_that_is_named_exists() -> None:
    """No inhibition waits for an alert that was renamed or dropped."""
    named = set()
    for rule in yaml.safe_load(ALERTMANAGER_CONFIG.read_text())["inhibit_rules"]:
        for matcher in rule["source_matchers"] + rule["target_matchers"]:
            if match := re.fullmatch(r'alertname=~?"(\w+)(?:\((.+)\))?"', matcher):
                named |= {match[1] + rest for rest in (match[2] or "").split("|")}

    assert len(named) > 20
    assert named <= set(alert_rules.alerts())


FOLLOWS_A_HANG = """
    Straggler SlowNode RankSlower RotatingImbalance StageImbalance CommunicationBound
    GpuUtilizationSkew RanksMissing NotJudgeable
    SlowStart JobSlower EfficiencyDrop InputStarvation CheckpointStall UnevenBatches
"""
EXPLAINS_A_DROP = (
    "Straggler SlowNode JobSlower RotatingImbalance InputStarvation CommunicationBound"
)
LATE = {"job_id": "twice", "rank": "1"}
LOST = {"instance": "holed", "gpu_uuid": "GPU-lost"}
UNWELL = {"instance": "holed", "gpu_uuid": "GPU-unwell"}


@pytest.mark.parametrize(
    ("sent", "held_back"),
    [
        pytest.param(
            # Each alert has its own job, because some of them inhibit others.
            [
                *(alert("JobHung", job_id=f"hung-{name}") for name in FOLLOWS_A_HANG.split()),
                alert("Straggler", job_id="neighbour"),
                alert("SlowNode", job_id="hung-SlowNode", cluster="other"),
            ],
            [alert(name, job_id=f"hung-{name}") for name in FOLLOWS_A_HANG.split()],
            id="while a job hangs nothing else of it is news, but another job's is",
        ),
        pytest.param(
            [
                alert("ExporterDown", instance="gone"),
                alert("GpuLost", instance="up", job_id="a"),
                # Ranks that no exporter shows have no instance: nothing inhibits this alert.
                alert("RanksMissing", job_id="a"),
            ],
            [
                *alerts("Straggler RankSlower RanksMissing", instance="gone", job_id="a", rank="1"),
                *alerts("GpuLost SlowNode", instance="gone"),
            ],
            id="the last words of a node whose exporter is down are silenced",
        ),
        pytest.param(
            [alert("RanksMissing", job_id="part"), alert("SlowStart", job_id="whole")],
            alerts("NotJudgeable SlowStart", job_id="part"),
            id="missing ranks explain what a job cannot do",
        ),
        pytest.param(
            [alert("SlowStart", job_id="slow"), alert("NotJudgeable", job_id="quick")],
            [alert("NotJudgeable", job_id="slow")],
            id="a slow start explains that a job cannot be judged",
        ),
        pytest.param(
            [
                *alerts("Straggler RankSlower", job_id="node", instance="other", rank="9"),
                alert("SlowNode", job_id="node", instance="slow"),
            ],
            alerts("Straggler RankSlower", job_id="node", instance="slow", rank="1"),
            id="a slow node explains its ranks, and no other node's",
        ),
        pytest.param(
            [
                *(alert(why, job_id=why) for why in EXPLAINS_A_DROP.split()),
                alert("EfficiencyDrop", job_id="another"),
            ],
            [alert("EfficiencyDrop", job_id=why) for why in EXPLAINS_A_DROP.split()],
            id="a drop that is explained is not told again",
        ),
        pytest.param(
            [
                alert("GpuLost", state="lost", **LOST),
                alert("NumaMismatch", **LOST),
                alert("GpuLost", state="recovery", **UNWELL),
                alert("GpuThrottled", reason="hw_slowdown", **UNWELL),
            ],
            alerts(
                "GpuXid GpuEccErrors GpuThrottled PcieLinkDegraded PcieSaturated NvlinkDown", **LOST
            ),
            id="what led to the loss of a GPU is silenced, not while it still works",
        ),
    ],
)
def test_one_cause_pages_once(
    sender: Sender, sent: list[dict[str, str]], held_back: list[dict[str, str]]
) -> None:
    """An alert that explains others inhibits them; every other alert is still sent."""
    sender.post(*({"labels": one} for one in sent + held_back))
    seen: list[dict[str, str]] = []
    deadline = time.monotonic() + 20  # The inhibitor receives alerts asynchronously.
    while time.monotonic() < deadline and seen != held_back:
        known: list[dict[str, Any]] = json.loads(get(f"{sender.url}/api/v2/alerts"))
        inhibited = [one["labels"] for one in known if one["status"]["inhibitedBy"]]
        seen = [labels for labels in sent + held_back if labels in inhibited]
    assert seen == held_back


def test_shadow_route_sends_only_what_has_left_it(tmp_path: Path) -> None:
    """Our alerts go to a receiver without integrations until the second matcher names them."""
    lines = ALERTMANAGER_CONFIG.read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("    # - matchers:"))
    last = next(n for n, line in enumerate(lines) if line.endswith("receiver: shadow"))
    route = [line.replace("# ", "", 1) for line in lines[first : last + 1]]
    config = tmp_path / "alertmanager.yaml"
    text = "\n".join([*lines[:first], *route, *lines[last + 1 :], ""])
    config.write_text(text.replace("nothing yet", "Rankskew(JobHung|Straggler)"))
    shutil.copy(ALERTMANAGER_CONFIG.parent / "notifications.tmpl", tmp_path)
    amtool("check-config", str(config))

    assert {"name": "shadow"} in yaml.safe_load(config.read_text())["receivers"]
    for name, receiver in [("JobHung", "page"), ("Straggler", "page"), ("SlowNode", "shadow")]:
        found = receiver_of(config, alertname=f"Rankskew{name}", severity="critical")
        assert found == receiver
    assert receiver_of(config, alertname="RankskewGpuXid", severity="info") == "shadow"
    assert receiver_of(config, alertname="DiskFull", severity="critical") == "page"


# ---- What they are told --------------------------------------------------------------------------

# Half an hour before the alert, and ten minutes after its end, in milliseconds.
SINCE, UNTIL = "from=1704177030000", 1704180180000
DEMO = promised("notifications", "RankskewStraggler", job_id="demo")
NIGHTLY = promised("notifications", "RankskewStraggler", job_id="nightly")


def diagnose(job: str, cluster: str = "") -> str:
    """Return the line with the command that diagnoses *job*."""
    of = f"--cluster {cluster} --job {job}" if cluster else f"--job {job}"
    return f"Diagnose: `rankskew diagnose --prometheus {PROMETHEUS_URL} {of} --at {BEGAN}`"


def as_shown(sent: dict[str, Any]) -> str:
    """Return a message as Slack shows it."""
    message = slack(sent)
    shown = [message["title"], *lines(message), " · ".join(links(message))]
    return "".join(f"{line}\n" for line in shown).replace("shown", "demo")


def test_straggler_is_said_as_the_readme_shows_it(sender: Sender) -> None:
    """The README shows the exact message: who, cost, since when, where, why, what to do, links.

    PagerDuty gets the same facts as fields, and a resolve event closes the incident there.
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
    """The title gives the job's total loss; the command uses the start of the latest alert."""
    first, *rest = NIGHTLY
    message = slack(sender.sends([replace(first, began="2024-01-02T02:00:00Z"), *rest]))

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
        "• Resolved after 5h13m0s: Rank 5 of job nightly is slow loading data; "
        "3.00 of 24 GPUs wait for it."
    )


def test_alert_in_place_of_another_is_told_in_full(sender: Sender) -> None:
    """A change of stage, cause or severity shows the new alert in full, the old one in a line."""
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


def test_alert_says_what_it_knows(sender: Sender) -> None:
    """All alerts share one template, which omits the facts that an alert lacks."""
    message = slack(sender.sends(elsewhere(NIGHTLY[1:], job_id="two")))
    assert message["title"] == (
        "west/two: rank 19 slow in the forward pass, steps 1.31× slower, $5.00/h lost"
    )
    assert lines(message)[1:] == [
        "First: `nvidia-smi -q -i 1` (compare with a peer's) on gpu-3",
        diagnose("two", "west"),
    ]

    silent = elsewhere(promised("RankskewRanksMissing", state="silent")[:1], cluster="lost")
    message = slack(sender.sends(silent))
    assert message["title"] == "lost: Rank 2 of job j has gone silent."
    assert lines(message) == [
        "Since 07:00 UTC. Rank 2 on m has not reported for 1m 15s; "
        "its last event: checkpoint began 1m 30s ago. "
        "Its process is dead, stopped, or cannot reach the exporter.",
        "First: `ps -p PID`, then `dmesg -T` on m",
        diagnose("j", "lost"),
    ]


def test_alert_without_a_job_leads_to_its_node(sender: Sender) -> None:
    """The dashboard link of an alert without a job opens the node in that alert."""
    [down] = elsewhere(promised("RankskewExporterDown")[:1], cluster="west")
    url = links(slack(sender.sends([down])))["Dashboard"]

    assert f"/d/{uid('node')}?var-instance=n%3A9917&var-cluster=west&from=" in url


# ---- Whatever alert fires, with whatever names ---------------------------------------------------

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


def test_every_message_is_complete(sender: Sender) -> None:
    """Every message has a title short enough for a phone, whole sentences, a runbook, a silence.

    No field is empty. PagerDuty gets the urgent alerts only, each with a known severity, a
    summary within PagerDuty's limit, and complete links.
    """
    begin = len(sender.receivers.sent)
    sender.post(*(one.posted(None) for one in EVERY))
    urgent = sum(
        one.labels["severity"] != "info" and one.labels["alertname"] not in NOTES for one in EVERY
    )
    deadline = time.monotonic() + 30
    sent: list[tuple[str, str, dict[str, Any]]] = []
    while len(sent) < len(EVERY) + urgent and time.monotonic() < deadline:
        time.sleep(0.05)
        sent = [each for each in sender.receivers.sent[begin:] if re.match(r"c\d+/", each[1])]
    messages = [slack({to: message}) for to, _, message in sent if to == "slack"]
    events = [message for to, _, message in sent if to == "pagerduty"]

    assert (len(messages), len(events)) == (len(EVERY), urgent)
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
    for event in events:
        assert event["payload"]["severity"] in ("critical", "warning")
        assert 0 < len(event["payload"]["summary"]) <= 1024
        assert all(link["href"].startswith("https://") for link in event["links"])
    assert len({event["dedup_key"] for event in events}) == len(events)


def test_hostile_name_neither_calls_a_channel_nor_breaks_a_link(sender: Sender) -> None:
    """Links and silences work for any job name, and no name acts as Slack markup."""
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


def test_nodes_that_a_broken_switch_hides_are_one_message(sender: Sender) -> None:
    labels = {"alertname": "RankskewExporterDown", "severity": "warning", "cluster": "rack"}
    gone = [Promised(labels | {"instance": f"n{number}:9917"}, {}) for number in range(3)]
    assert "3 alerts" in slack(sender.sends(gone))["title"]


def test_alert_without_annotations_has_its_name(sender: Sender) -> None:
    """The template also serves alerts that are not ours, and shows their name and instance."""
    labels = {"alertname": "DiskFull", "severity": "warning", "cluster": "own"}
    alert = Promised({**labels, "instance": "store:9100"}, {})

    assert slack(sender.sends([alert]))["title"] == "own/store: DiskFull"
    ended = slack(sender.sends(ended=[alert]))
    assert ended["title"] == "Resolved after 12m30s: own/store: DiskFull"
