import json

from rankskew.compare.comparison import Comparison, compare
from rankskew.compare.report import EXIT_STATUS, as_json, as_markdown, as_text
from tests.rankskew.compare.sides import late, side


def improved() -> Comparison:
    before = side(0.611, noise=0, stages={"data": 0.3}, late=[late(6, 1.65)], lost_gpus=2.3)
    after = side(0.501, noise=0.02, stages={"data": 0.2}, lost_gpus=0.5)
    return compare(before, after)


def test_text_says_the_change_first() -> None:
    """The verdict and the ratio with its interval come before the table."""
    lines = as_text(improved()).splitlines()

    assert lines[0] == "job llama: improved"
    assert lines[1].startswith("Steps take 0.82")
    assert " times as long as before (95 % interval 0.8" in lines[1]


def test_table_has_each_quantity_on_both_sides() -> None:
    """Step, GPUs lost by kind, stages of the median rank."""
    text = as_text(improved())

    rows = [line.strip().split("  ")[0] for line in text.splitlines()[5:9]]
    assert rows == ["steps", "step", "GPUs lost", "persistent"]
    assert "611 ms" in text
    assert "-1.80 (-1.80 to -1.80)" in text
    assert "data, median rank" in text


def test_late_ranks_are_told_with_their_cost() -> None:
    """A rank that is no longer late is said to be none."""
    assert as_text(improved()).splitlines()[-1] == (
        "Rank 6, slow loading data: 1.65 GPUs lost before, no longer late."
    )


def test_nobody_late_is_said_and_nobody_judged_too() -> None:
    """Silence would leave open which of the two it is."""
    assert "No rank was late on either side." in as_text(compare(side(), side()))
    assert "nobody judged the job" in as_text(compare(side(late=None), side()))


def test_a_refusal_is_its_reason_and_nothing_else() -> None:
    """No table that could be taken for a result."""
    assert as_text(compare(side(trouble="Before has a restart in it."), side())) == (
        "job llama: cannot tell\nBefore has a restart in it."
    )


def test_throughput_is_told_as_a_gain() -> None:
    """Half the GPU-seconds for a token are twice the tokens a second."""
    found = compare(side(0.5, noise=0, tokens_a_step=1000), side(0.5, noise=0, tokens_a_step=2000))

    assert as_text(found).splitlines()[1] == (
        "A GPU trains 2.000 times as many tokens a second as before (95 % interval 2.000 to 2.000)."
    )


def test_no_worse_says_what_is_ruled_out() -> None:
    """A reader must not take it for a gain."""
    text = as_text(compare(side(0.5), side(0.5, seed=2)))

    assert text.startswith("job llama: no worse\n")
    assert "no change is certain, and a loss of 2% or more is ruled out." in text


def test_markdown_has_a_table() -> None:
    """Every row has as many cells as the head."""
    lines = as_markdown(improved()).splitlines()
    table = [line for line in lines if line.startswith("|")]

    assert lines[0] == "## job llama: improved"
    assert {line.count("|") for line in table} == {5}
    assert lines[-1].startswith("- Rank 6")


def test_json_has_all_of_it() -> None:
    """A script finds verdict, ratio, interval and late ranks."""
    found = json.loads(as_json(improved()))

    assert found["verdict"] == "improved"
    assert found["cost"]["name"] == "step"
    assert found["cost"]["ratio"]["low"] < found["cost"]["ratio"]["value"] < 1
    assert found["before"]["ranks"] == 8
    assert found["late"][0]["before"]["gpus_lost"] == 1.65
    assert [one["name"] for one in found["gpus_lost"]] == ["total", "persistent"]


def test_status_is_0_for_no_worse_1_for_worse_2_for_unknown() -> None:
    """Scripts may fail a change on 1 and repeat it on 2."""
    assert EXIT_STATUS == {"improved": 0, "no_worse": 0, "worse": 1, "cannot_tell": 2}
