"""`rankskew diagnose`: its report in words, the parts of a loss, its advice and its status."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.live.states import STATES
from exporter.vocabulary.words import CAUSES
from generators import alert_rules
from rank_probe.judge.verdict import REASONS
from rank_probe.wire.stages import STAGES
from rankskew.__main__ import main
from rankskew.diagnose.advice import DISTURBS, advice, filled, for_alert, situations
from rankskew.diagnose.findings import loss
from rankskew.diagnose.from_exporter import read_exporters
from rankskew.diagnose.model import CANNOT_TELL, Finding, Part, Place, Report, Step
from rankskew.diagnose.render import in_words, loss_section
from rankskew.render import COLUMNS, render
from tests.alerts.receivers import promised
from tests.printed import assert_golden
from tests.rankskew import fake_prometheus as fake
from tests.rankskew.documents import CAUSE, late, live, rank, straggler
from tests.rankskew.fake_prometheus import recorded
from tests.rankskew.servers import exporter_of

Captured = pytest.CaptureFixture[str]

# ---- In words ------------------------------------------------------------------------------------

AT = 1_795_420_800.0


def report(*others: Finding) -> Report:
    """Return a report with all that one can have, or with *others* as its findings."""
    line = {"stage": "data", "place": "Corpus.read (corpus.py:41)", "share": 0.87}
    ranks = [rank(each, late_lines=[line] if each == 2 else []) for each in range(4)]
    late_ranks = [late(2, cause=CAUSE), late(3, gpus_lost=0.1)]
    document = live(straggler(late=late_ranks, ranks=ranks, coverage=0.9), at=AT)
    with exporter_of(document) as url:
        found = read_exporters([url], None)
    (finding,) = found.findings
    told = replace(
        finding,
        facts=("Rank 2 on node1: a GPU is throttled.",),
        steps=(Step("Look at it.", "nothing"), Step("Give it more workers. " * 5, "restart")),
        proof="The rank's `data` time is that of its peers.",
        links=("https://example.org/input.md",),
    )
    where = {"source": "http://p:9090", "cluster": "eu"}
    return replace(found, **where, cost_per_hour=5.01, findings=others or (told,))  # type: ignore[arg-type]


def test_texts_are_the_golden_ones() -> None:
    """The loss, who, where, since when, why, what to do first, the proof; or that all is well."""
    late = in_words(report())
    well = in_words(Report("http://n1:9917", "llama", "healthy", "8 ranks keep up.", AT))
    texts = {"late rank": render(late), "balanced": render(well)}
    forms = {"Markdown": render(late, markdown=True), "of balance": render(well, markdown=True)}
    assert_golden("diagnose", texts | forms)


def test_text_fits_whatever_is_found() -> None:
    """No line is longer than a terminal but for an address; no sentence is said twice.

    A name is no HTML. The series of a late rank may end before the state of its job does: then
    nothing can be told, which is no balance.
    """
    long = render(in_words(report(Finding("input", "Rank 6 is slow. " * 20))))
    said_once = report().sentence
    twice = render(in_words(report(Finding("input", said_once))))
    named = Finding("input", "Rank <b>6</b> is slow.", place=Place("<i>n2</i>"))
    markdown = render(in_words(report(named)), markdown=True)

    assert max(len(line) for line in long.splitlines() if "https://" not in line) <= COLUMNS
    assert twice.count(said_once) == 1
    assert "Rank \\<b\\>6\\</b\\> is slow." in markdown
    assert "&lt;i>n2&lt;/i>" in markdown
    assert Report("p", "llama", "straggler", "A rank is late.", AT).outcome == CANNOT_TELL


# ---- The loss in parts ---------------------------------------------------------------------------


def assert_adds_up(part: Part) -> None:
    if part.parts:
        assert sum(each.gpus for each in part.parts) == pytest.approx(part.gpus)
    for each in part.parts:
        assert_adds_up(each)


def test_parts_add_up_to_the_total() -> None:
    """By kind, then by late rank, then by stage; the ranks share what their kind costs.

    What costs nothing has no line. Ten ranks have a part each; a judge lists 32 at most, and the
    others have cost the rest.
    """
    late = {6: {"data": 1.6, "forward": 0.05}, 3: {"backward": 0.35}}
    found = loss({"persistent": 1.0, "rotating": 0.07, "common": 0.344, "group": 0.0}, late)
    little = loss({"persistent": 1.0, "rotating": 0.001}, {6: {"data": 1.0}})
    many = loss({"persistent": 10.0}, {rank: {"data": 0.25} for rank in range(32)})

    assert_adds_up(found)
    assert found.gpus == pytest.approx(1.414)
    ranks = found.parts[0].parts
    assert [(rank.name, round(rank.gpus, 4)) for rank in ranks] == [
        ("rank 6", 0.825),
        ("rank 3", 0.175),
    ]
    assert loss_section("", little).rows == [
        ("1.00", "to late ranks"),
        ("1.00", "  rank 6"),
        ("1.00", "    data"),
    ]
    assert_adds_up(many)
    assert [(part.name, part.gpus) for part in many.parts[0].parts[10:]] == [("other ranks", 7.5)]


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

    assert sorted(alert for entry in every for alert in entry.alerts) == sorted(
        alert_rules.alerts()
    )
    for entry in every:
        assert (ALERTS / "runbooks" / f"{entry.runbook}.md").is_file()
        if entry.alerts:
            assert entry.runbook == entry.alerts[0]
    assert for_alert("RankskewNoSuchAlert") is None
    assert names - {"ranks_missing", "ranks_silent"} <= set(situations())
    assert set(STATES) - late <= set(situations())
    assert set(advice()) == set(CAUSES)
    assert all(entry.text == CAUSES[cause].text for cause, entry in advice().items())
    assert {"hung", "hung_together", "ranks_missing", "ranks_silent"} <= set(situations())


@pytest.mark.parametrize(
    ("situation", "alert", "values"),
    [
        ("hung", "RankskewJobHung", {"PID": "31337", "NODE": "gpu-4"}),
        ("ranks_silent", "RankskewRanksMissing", {"NODE": "m"}),
    ],
)
def test_situation_begins_with_the_words_of_its_alert(
    situation: str, alert: str, values: dict[str, str]
) -> None:
    """What a page says to do first is what the report says."""
    stem = "notifications" if alert == "RankskewJobHung" else alert
    said = [one.annotations["first"] for one in promised(stem, alert) if "first" in one.annotations]

    assert filled(situations()[situation].first, values) in said


def test_placeholders_are_filled_in() -> None:
    """Whole words only, and nothing that a shell would run."""
    text = "py-spy dump --pid PID; OTHER_PID on NODE"

    assert filled("`nvidia-smi -i GPU`: a GPU", {"GPU": "3"}) == "`nvidia-smi -i 3`: a GPU"
    assert filled("`nvidia-smi -i GPU-5f0c`", {"GPU": "3"}) == "`nvidia-smi -i GPU-5f0c`"
    assert filled(text, {"PID": "123", "NODE": "gpu-12"}) == (
        "py-spy dump --pid 123; OTHER_PID on gpu-12"
    )
    assert filled(text, {"NODE": "$(reboot)"}) == text


# ---- The command ---------------------------------------------------------------------------------


def test_status_says_whether_something_is_found(capsys: Captured) -> None:
    """Text, Markdown, and the whole report as JSON for programs; nothing is on stderr."""
    with recorded(*fake.straggler()).serve() as url:
        assert main(["diagnose", "--prometheus", url]) == 1
        text = capsys.readouterr()
        at = ("--at", "2026-11-23T09:00+01:00")
        assert main(["diagnose", "--prometheus", url, "--json", *at]) == 1
    said = json.loads(capsys.readouterr().out)
    with recorded(*fake.job(), *fake.losses(common=0.3)).serve() as url:
        assert main(["diagnose", "--prometheus", url, "--markdown"]) == 0

    assert "Balanced: nothing is wrong that was measured." in capsys.readouterr().out
    assert ("1. Rank 6 is slow loading data" in text.out, text.err) == (True, "")
    assert (said["outcome"], said["exit_status"], said["job_id"]) == ("found", 1, "llama")
    assert said["at_seconds"] == 1_795_420_800.0
    finding = said["findings"][0]
    cause = finding["cause"]
    assert (finding["rank"], finding["place"]["pid"]) == (6, 4006)
    assert (cause["cause"], cause["detail"], cause["share"]) == ("input", "workers", 0.97)
    figure = ("saturated_workers", 3.0, 0.0)
    assert (cause["figure"], cause["value"], cause["peers_value"]) == figure
    assert said["cost_per_hour"] == 0.75


def test_what_cannot_be_told_is_status_2(capsys: Captured) -> None:
    """One sentence on stderr, and a document for programs."""
    with exporter_of(live()) as url:
        pass
    assert main(["diagnose", "--exporter", url, "--json"]) == 2
    said = capsys.readouterr()
    assert said.err == f"rankskew: {url} does not answer: Connection refused.\n"
    assert json.loads(said.out)["trouble"].startswith(url)
