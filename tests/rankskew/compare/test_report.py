import json
from dataclasses import asdict

from rank_probe.wire.document import as_document
from rankskew.commands.compare import comparison_document
from rankskew.compare.comparison import EXIT_STATUS, Comparison, compare
from rankskew.render import render
from tests.rankskew.compare.sides import late, side
from tests.rankskew.golden import assert_golden


def improved() -> Comparison:
    before = side(0.611, noise=0, stages={"data": 0.3}, late=[late(6, 1.65)], lost_gpus=2.3)
    after = side(0.501, noise=0.02, stages={"data": 0.2}, lost_gpus=0.5)
    return compare(before, after)


def test_texts_are_the_golden_ones() -> None:
    """A gain, throughput, no loss, a new and a dearer late rank, no judge, and a refusal."""
    more = side(0.5, noise=0, tokens_a_step=2000, slowdown=1.0, stages={"checkpoint": 0.1})
    moved = [late(3, 0.3), late(6, 0.5, stage="forward")]
    found = {
        "improved": improved(),
        "throughput": compare(side(1.5, noise=0, tokens_a_step=1000, slowdown=1.2), more),
        "no worse": compare(side(0.5), side(0.5, seed=2)),
        "late ranks": compare(side(late=[late(3, 0.2)]), side(late=moved, seed=2)),
        "not judged": compare(side(late=None), side()),
        "refused": compare(side(trouble="Before has a restart in it."), side()),
    }
    texts = {name: render(comparison_document(one)) for name, one in found.items()}
    markdown = render(comparison_document(improved()), markdown=True)
    assert_golden("compare", texts | {"Markdown": markdown})


def test_json_has_all_of_it() -> None:
    found = json.loads(as_document("compare", asdict(improved())))

    assert (found["verdict"], found["cost"]["name"]) == ("improved", "step")
    assert found["cost"]["ratio"]["low"] < found["cost"]["ratio"]["value"] < 1
    assert found["before"]["ranks"] == 8
    assert found["late"][0]["before"]["gpus_lost"] == 1.65
    assert [one["name"] for one in found["gpus_lost"]] == ["total", "persistent"]


def test_status_is_0_for_no_worse_1_for_worse_2_for_unknown() -> None:
    """Scripts may fail a change on 1 and repeat it on 2."""
    assert EXIT_STATUS == {"improved": 0, "no_worse": 0, "worse": 1, "cannot_tell": 2}
