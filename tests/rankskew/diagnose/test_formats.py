"""The report at a terminal, and in a ticket."""

import re

from rankskew.diagnose.formats import COLUMNS, as_markdown, as_text
from rankskew.diagnose.model import CANNOT_TELL
from tests.rankskew.diagnose.findings import late, report


def test_report_on_a_late_rank() -> None:
    """The loss, who, where, since when, why, what to do first, and the proof."""
    said = as_text(report(late()))

    assert said.startswith("llama: straggler. No rank is late.\nFrom http://p:9090, 2026-")
    assert (
        "2.00 of 8 GPUs do nothing but wait, $5.01 an hour; steps take 1.33 times as long" in said
    )
    for row in (
        "     1.66  to late ranks",
        "     1.61      data",
        "   Where       n2:9917, GPU 2, GPU-6, PID 4006",
        "   Since       4 min (",
        "   Cost        1.65 GPUs; its own time is 35.0% longer than its peers'",
        "   Code        87% of its time in data is in Corpus.read (corpus.py:41)",
        "   Cause       loader (workers at their limit): 3 of its workers never wait, 0 of its",
        "   First       `py-spy dump --pid 4006` on n2",
        "   Proof       The rank's `data` time is that of its peers.",
        "main/docs/playbook/input.md",
        "RankskewStraggler.md",
        "Not judged:\n   Only 90%",
    ):
        assert row in said


def test_no_line_is_longer_than_a_terminal() -> None:
    """Only an address or a name without a space may be."""
    lines = as_text(report(late(sentence="Rank 6 is slow. " * 20))).splitlines()

    assert max(len(line) for line in lines if "https://" not in line) <= COLUMNS


def test_printed_loss_adds_up() -> None:
    """Each part is the sum of what stands below it."""
    found = re.findall(r"^ +(\d+\.\d\d)  ( *)", as_text(report(late())), re.MULTILINE)
    top = [float(gpus) for gpus, indent in found if not indent]

    assert round(sum(top), 2) == 2.0


def test_balanced_job_is_told_so() -> None:
    """A healthy report says it in words."""
    said = as_text(report(state="healthy", unjudged=(), loss=None))

    assert "Balanced: nothing is wrong that was measured." in said


def test_late_rank_of_which_nothing_is_left_is_not_balance() -> None:
    """Its series may end before the state of the job does."""
    assert report(state="straggler").outcome == CANNOT_TELL


def test_sentence_is_not_said_twice() -> None:
    """The first finding often is the sentence of the state."""
    said = as_text(report(late(sentence="No rank is late.")))

    assert said.count("No rank is late.") == 1


def test_markdown_has_the_same_rows() -> None:
    """Headings, lists and links; a name cannot be HTML."""
    said = as_markdown(report(late(sentence="Rank <b>6</b> is slow.")))

    assert said.startswith("# llama: straggler\n")
    assert "## 1. Rank &lt;b>6&lt;/b> is slow." in said
    assert "- **Cause:** loader (workers at their limit): 3 of its workers never wait" in said
    assert "    - 1.61 data" in said
    assert "1. `py-spy dump --pid 4006` on n2" in said
    assert "<https://github.com/rankskew/rankskew/blob/main/docs/playbook/input.md>" in said
