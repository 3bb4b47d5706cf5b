"""`rankskew diagnose`: its report in words, the parts of a loss, its advice and its status."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.live.states import STATES
from exporter.vocabulary.advice import DISTURBS, advice, filled, for_alert, situations
from exporter.vocabulary.words import CAUSES
from generators import alert_rules
from rank_probe.judge.verdict import REASONS
from rank_probe.wire.stages import STAGES
from rankskew.__main__ import main
from rankskew.diagnose.findings import loss
from rankskew.diagnose.model import CANNOT_TELL, Finding, Place, Report
from rankskew.diagnose.render import in_words, loss_section
from rankskew.render import COLUMNS, render
from tests.printed import assert_golden
from tests.rankskew import fake_prometheus as fake
from tests.rankskew.documents import live
from tests.rankskew.fake_prometheus import WHO, Series, recorded, series, straggler
from tests.rankskew.servers import exporter_of

Captured = pytest.CaptureFixture[str]

# ---- In words ------------------------------------------------------------------------------------

AT = 1_795_420_800.0


def printed(capsys: Captured, samples: Sequence[Series], *flags: str, status: int) -> str:
    """Return what the command prints of a Prometheus with *samples*."""
    with recorded(*samples).serve() as url:
        assert main(["diagnose", "--prometheus", url, *flags]) == status
    said = capsys.readouterr()
    assert said.err == ""
    return said.out.replace(url, "http://p:9090")


def test_report_is_the_golden_one(capsys: Captured) -> None:
    """The loss, who, where, since when, why, what to do first, the proof; or that all is well.

    The status says whether something is found; programs get the whole report as JSON.
    """
    throttled = {"alertname": "RankskewGpuThrottled", "alertstate": "firing", "severity": "warning"}
    late = [
        *((each, 0.9 if "coverage" in each["__name__"] else gpus) for each, gpus in straggler()),
        series("ALERTS", **throttled, **WHO),
    ]
    well = [*fake.job(), *fake.losses(common=0.3)]
    texts = {
        "late rank": printed(capsys, late, status=1),
        "Markdown": printed(capsys, late, "--markdown", status=1),
        "balanced": printed(capsys, well, status=0),
        "of balance": printed(capsys, well, "--markdown", status=0),
    }
    at = ("--at", "2026-11-23T09:00+01:00")
    said = json.loads(printed(capsys, late, "--json", *at, status=1))
    (finding,) = said["findings"]
    cause = finding["cause"]

    assert_golden("diagnose", texts)
    assert (said["outcome"], said["exit_status"], said["job_id"]) == ("found", 1, "llama")
    assert (said["at_seconds"], said["cost_per_hour"]) == (AT, 0.75)
    assert (finding["rank"], finding["place"]["pid"]) == (6, 4006)
    assert (cause["cause"], cause["detail"], cause["share"]) == ("input", "workers", 0.97)
    figure = ("saturated_workers", 3.0, 0.0)
    assert (cause["figure"], cause["value"], cause["peers_value"]) == figure


def test_what_cannot_be_told_is_status_2(capsys: Captured) -> None:
    """One sentence on stderr, and a document for programs."""
    with exporter_of(live()) as url:
        pass
    assert main(["diagnose", "--exporter", url, "--json"]) == 2
    said = capsys.readouterr()
    assert said.err == f"rankskew: {url} does not answer: Connection refused.\n"
    assert json.loads(said.out)["trouble"].startswith(url)


def test_text_fits_whatever_is_found() -> None:
    """No line is longer than a terminal but for an address; no sentence is said twice.

    A name is no HTML. The series of a late rank may end before the state of its job does: then
    nothing can be told, which is no balance.
    """
    report = Report("p", "llama", "straggler", "A rank is late.", AT)

    def told(*findings: Finding, markdown: bool = False) -> str:
        return render(in_words(replace(report, findings=findings)), markdown=markdown)

    long = told(Finding("input", "Rank 6 is slow. " * 20))
    named = Finding("input", "Rank <b>6</b> is slow.", place=Place("<i>n2</i>"))

    assert max(map(len, long.splitlines())) <= COLUMNS
    assert told(Finding("input", report.sentence)).count(report.sentence) == 1
    assert "Rank \\<b\\>6\\</b\\> is slow." in told(named, markdown=True)
    assert "&lt;i>n2&lt;/i>" in told(named, markdown=True)
    assert report.outcome == CANNOT_TELL


# ---- The loss in parts ---------------------------------------------------------------------------


def parts(kinds: dict[str, float], late: dict[int, dict[str, float]]) -> list[Sequence[str]]:
    """Return the lines of a loss: GPUs, and what they are lost to."""
    return list(loss_section("", loss(kinds, late)).rows)


def test_parts_add_up_to_the_total() -> None:
    """By kind, then by late rank, then by stage; the ranks share what their kind costs.

    What costs nothing has no line. Ten ranks have a part each; a judge lists 32 at most, and the
    others have cost the rest.
    """
    late = {6: {"data": 1.5, "forward": 0.1}, 3: {"backward": 0.4}}
    many = {rank: {"data": 0.25} for rank in range(32)}

    assert parts({"persistent": 1.0, "rotating": 0.07, "group": 0.001}, late) == [
        ("1.00", "to late ranks"),
        ("0.80", "  rank 6"),
        ("0.75", "    data"),
        ("0.05", "    forward"),
        ("0.20", "  rank 3"),
        ("0.20", "    backward"),
        ("0.07", "to ranks that are late in turn"),
    ]
    total = loss({"persistent": 1.0, "rotating": 0.07, "common": 0.344}, late).gpus
    assert total == pytest.approx(1.414)
    assert parts({"persistent": 10.0}, many)[21:] == [("7.50", "  other ranks")]


# ---- The advice ----------------------------------------------------------------------------------

ALERTS = Path(__file__).parents[2] / "alerts"


def test_advice_begins_with_what_disturbs_least() -> None:
    """Of every cause, detail and stage there is some; so it is with every situation."""
    for entry in advice().values():
        assert entry.actions[0].disturbs == DISTURBS[0]
        details = {detail for action in entry.actions for detail in action.details}
        for detail in [None, *details]:
            for stage in STAGES:
                assert len(entry.steps(detail, stage)) >= 2
    for situation in situations().values():
        steps = [DISTURBS.index(action.disturbs) for action in situation.actions]
        assert steps == sorted(steps)
        assert situation.first


def test_every_alert_state_and_reason_has_advice() -> None:
    """What a job can be besides healthy is a cause, a situation or both, in the usual words.

    Each alert belongs to one entry, whose runbook is its own.
    """
    every = [*advice().values(), *situations().values()]
    coverage = (ALERTS / "rules" / "coverage.yaml").read_text()
    reasons = set(re.findall(r'"reason", "(\w+)"|reason: (\w+)', coverage))
    names = {one or other for one, other in reasons} | set(REASONS)
    late = {"hung", "slow_node", "straggler", "healthy", "not_judgeable", "ranks_missing"}

    alerts = sorted(alert for entry in every for alert in entry.alerts)
    assert alerts == sorted(alert_rules.alerts())
    for entry in every:
        assert (ALERTS / "runbooks" / f"{entry.runbook}.md").is_file()
        assert not entry.alerts or entry.runbook == entry.alerts[0]
    assert for_alert("RankskewNoSuchAlert") is None
    assert names - {"ranks_missing", "ranks_silent"} <= set(situations())
    assert set(STATES) - late <= set(situations())
    assert set(advice()) == set(CAUSES)
    assert all(entry.text == CAUSES[cause].text for cause, entry in advice().items())
    assert {"hung", "hung_together", "ranks_missing", "ranks_silent"} <= set(situations())


def test_placeholders_are_filled_in() -> None:
    """Whole words only, and nothing that a shell would run."""
    text = "py-spy dump --pid PID; OTHER_PID on NODE"

    assert filled("`nvidia-smi -i GPU`: a GPU", {"GPU": "3"}) == "`nvidia-smi -i 3`: a GPU"
    assert filled("`nvidia-smi -i GPU-5f0c`", {"GPU": "3"}) == "`nvidia-smi -i GPU-5f0c`"
    both = filled(text, {"PID": "123", "NODE": "gpu-12"})
    assert both == "py-spy dump --pid 123; OTHER_PID on gpu-12"
    assert filled(text, {"NODE": "$(reboot)"}) == text
