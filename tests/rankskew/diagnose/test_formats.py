"""The report at a terminal, and in a ticket."""

import pytest

from exporter.causes.model import Guess
from exporter.live.causes import CauseView, LineView
from rankskew.diagnose.findings import loss
from rankskew.diagnose.model import CANNOT_TELL, Event, Finding, Part, Place, Report, Step
from rankskew.diagnose.render import in_words, loss_section
from rankskew.render import COLUMNS, render
from tests.rankskew.golden import assert_golden

AT = 1_795_420_800.0
LATE = Finding(
    what="input",
    sentence="Rank 6 is slow loading data; 1.65 of 8 GPUs wait for it.",
    rank=6,
    ranks=(6,),
    place=Place("n2", "2", "GPU-6", 4006),
    stage="data",
    kind="persistent",
    ratio=0.35,
    gpus_lost=1.65,
    since_seconds=240.0,
    lines=(LineView("data", "Corpus.read (corpus.py:41)", 0.87),),
    cause=CauseView(
        cause="input",
        detail="workers",
        share=0.97,
        sentence="3 of its workers never wait, 0 of its peers'",
        first_action="`py-spy dump --pid 4006` on n2",
        figure="saturated_workers",
        value=3.0,
        peers_value=0.0,
        unit="",
        others=[Guess("gc", "", 0.1, "garbage collection")],
    ),
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
        cost_per_hour=5.01,
        findings=(finding,),
        more=("Late as well: rank 3.",),
        events=(Event(240.0, "Rank 6 became slow loading data."),),
        unjudged=("Only 90% of the job's ranks and steps are judged.",),
    )


def test_texts_are_the_golden_ones() -> None:
    """The loss, who, where, since when, why, what to do first, the proof; or that all is well."""
    late = in_words(report())
    well = in_words(Report("http://n1:9917", "llama", "healthy", "8 ranks keep up.", AT))
    texts = {"late rank": render(late), "balanced": render(well)}
    forms = {"Markdown": render(late, markdown=True), "of balance": render(well, markdown=True)}
    assert_golden("diagnose", texts | forms)


def test_no_line_is_longer_than_a_terminal() -> None:
    """Only an address or a name without a space may be."""
    said = Finding("input", "Rank 6 is slow. " * 20)
    lines = render(in_words(report(said))).splitlines()

    assert max(len(line) for line in lines if "https://" not in line) <= COLUMNS


def test_late_rank_of_which_nothing_is_left_is_not_balance() -> None:
    """Its series may end before the state of the job does."""
    assert Report("p", "llama", "straggler", "A rank is late.", AT).outcome == CANNOT_TELL


def test_sentence_is_not_said_twice() -> None:
    """The first finding often is the sentence of the state."""
    said = render(in_words(report(Finding("input", "No rank is late."))))

    assert said.count("No rank is late.") == 1


def test_name_cannot_be_html() -> None:
    named = Finding("input", "Rank <b>6</b> is slow.", place=Place("<i>n2</i>"))
    said = render(in_words(report(named)), markdown=True)

    assert "Rank \\<b\\>6\\</b\\> is slow." in said
    assert "&lt;i>n2&lt;/i>" in said


# ---- The loss in parts ---------------------------------------------------------------------------


def assert_adds_up(part: Part) -> None:
    if part.parts:
        assert sum(each.gpus for each in part.parts) == pytest.approx(part.gpus)
    for each in part.parts:
        assert_adds_up(each)


def test_parts_add_up_to_the_total() -> None:
    """By kind, then by late rank, then by stage; the ranks share what their kind costs."""
    late = {6: {"data": 1.6, "forward": 0.05}, 3: {"backward": 0.35}}
    found = loss({"persistent": 1.0, "rotating": 0.07, "common": 0.344, "group": 0.0}, late)

    assert_adds_up(found)
    assert found.gpus == pytest.approx(1.414)
    ranks = found.parts[0].parts
    assert [(rank.name, round(rank.gpus, 4)) for rank in ranks] == [
        ("rank 6", 0.825),
        ("rank 3", 0.175),
    ]


def test_kind_that_costs_nothing_has_no_line() -> None:
    little = loss({"persistent": 1.0, "rotating": 0.001}, {6: {"data": 1.0}})

    assert loss_section("", little).rows == [
        ("1.00", "to late ranks"),
        ("1.00", "  rank 6"),
        ("1.00", "    data"),
    ]


def test_more_late_ranks_than_are_listed_have_a_part() -> None:
    """Ten have a part each; a judge lists 32 at most, and the others have cost the rest."""
    found = loss({"persistent": 10.0}, {rank: {"data": 0.25} for rank in range(32)})

    assert_adds_up(found)
    assert [(part.name, part.gpus) for part in found.parts[0].parts[10:]] == [("other ranks", 7.5)]
