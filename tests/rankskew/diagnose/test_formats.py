"""The report at a terminal, and in a ticket."""

import re

from exporter.live.causes import LineView
from rankskew.diagnose.loss import loss
from rankskew.diagnose.model import CANNOT_TELL, Event, Finding, Place, Report, Step
from rankskew.diagnose.render import COLUMNS, as_markdown, as_text, rows
from tests.rankskew.golden import assert_golden

AT = 1_795_420_800.0
LATE = Finding(
    what="input",
    sentence="Rank 6 is slow loading data; 1.65 of 8 GPUs wait for it.",
    rank=6,
    ranks=(6,),
    place=Place("n2", "n2:9917", "2", "GPU-6", 4006),
    stage="data",
    kind="persistent",
    ratio=0.35,
    gpus_lost=1.65,
    since_seconds=240.0,
    lines=(LineView("data", "Corpus.read (corpus.py:41)", 0.87),),
    cause="input",
    cause_text="3 of its workers never wait, 0 of its peers'",
    detail="workers",
    explains=0.97,
    others=("garbage collection (10%)",),
    facts=("Rank 6 on n2: a GPU is throttled.",),
    first="`py-spy dump --pid 4006` on n2",
    steps=(Step("Look at it.", "nothing"), Step("Give it more workers. " * 5, "restart")),
    proof="The rank's `data` time is that of its peers.",
    links=("https://example.org/input.md",),
)


def report(finding: Finding = LATE) -> Report:
    """Return a report with all that one can have."""
    return Report(
        source="http://p:9090",
        job_id="llama",
        cluster="eu",
        state="straggler",
        sentence="No rank is late.",
        at_seconds=AT,
        world_size=8,
        loss=loss({"persistent": 1.66, "common": 0.344}, {6: {"data": 1.6, "forward": 0.05}}),
        slowdown=1.33,
        gpu_hour_price=2.5,
        findings=(finding,),
        more=("Late as well: rank 3.",),
        events=(Event(240.0, "Rank 6 became slow loading data."),),
        unjudged=("Only 90% of the job's ranks and steps are judged.",),
    )


def test_texts_are_the_golden_ones() -> None:
    """The loss, who, where, since when, why, what to do first, the proof; or that all is well."""
    well = Report("/scratch/trace", "llama", "healthy", "8 ranks keep up.", covers_seconds=60.0)
    texts = {"late rank": as_text(report()), "balanced trace": as_text(well)}
    forms = {"Markdown": as_markdown(report()), "Markdown, balanced": as_markdown(well)}
    assert_golden("diagnose", texts | forms)


def test_no_line_is_longer_than_a_terminal() -> None:
    """Only an address or a name without a space may be."""
    said = Finding("input", "Rank 6 is slow. " * 20)
    lines = as_text(report(said)).splitlines()

    assert max(len(line) for line in lines if "https://" not in line) <= COLUMNS


def test_printed_loss_adds_up() -> None:
    found = re.findall(r"^ +(\d+\.\d\d)  ( *)", as_text(report()), re.MULTILINE)

    assert round(sum(float(gpus) for gpus, indent in found if not indent), 2) == 2.0


def test_late_rank_of_which_nothing_is_left_is_not_balance() -> None:
    """Its series may end before the state of the job does."""
    assert Report("p", "llama", "straggler", "A rank is late.").outcome == CANNOT_TELL


def test_sentence_is_not_said_twice() -> None:
    """The first finding often is the sentence of the state."""
    assert as_text(report(Finding("input", "No rank is late."))).count("No rank is late.") == 1


def test_name_cannot_be_html() -> None:
    assert "Rank &lt;b>6&lt;/b> is slow." in as_markdown(
        report(Finding("input", "Rank <b>6</b> is slow."))
    )


def test_incident_that_is_over_has_an_end() -> None:
    """At a time of day, or in a trace that has none; a cause not known accounts for nothing."""
    over = Finding(
        "gc",
        "It was.",
        since_seconds=600.0,
        until_seconds=300.0,
        cause="unknown",
        cause_text="none",
    )

    assert dict(rows(over, AT))["Since"].endswith(" UTC) until 5 min ago")
    assert dict(rows(over, None))["Since"] == "10 min before the end until 5 min before it"
    assert dict(rows(over, None))["Cause"] == "not known: none."
