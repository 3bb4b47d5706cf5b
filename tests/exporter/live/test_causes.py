"""A cause on the page: its unit, and its sentence."""

import pytest

from exporter.causes.model import UNKNOWN
from exporter.causes.units import unit_of
from exporter.live.causes import CauseView, cause_sentence
from rank_probe.wire.figures import FIGURES


@pytest.mark.parametrize(
    ("figure", "unit"),
    [
        ("sm_clock_hertz", "hertz"),
        ("read_bytes_per_second", "bytes_per_second"),
        ("major_faults_per_second", "per_second"),
        ("data_seconds", "seconds"),
        ("tokens_per_step", ""),
        ("nvlink_links_up", ""),
        ("", ""),
    ],
)
def test_unit_is_in_the_name(figure: str, unit: str) -> None:
    """Scripts format a figure by its unit; one that counts something has none."""
    assert unit_of(figure) == unit


def test_every_unit_is_known() -> None:
    """A figure with a unit that no script can format would be shown as a bare number."""
    bare = [figure for figure in FIGURES if not unit_of(figure)]

    assert bare == [
        "gpu_foreign_processes",
        "gpu_memory_faults",
        "nvlink_links_up",
        "saturated_workers",
        "tokens_per_step",
        "samples_per_step",
        "node_steal_cpus",
    ]


@pytest.mark.parametrize(
    ("cause", "sentence", "said"),
    [
        ("gc", "it collects garbage", "Cause: it collects garbage."),
        (UNKNOWN, "gc is a third of it", "Cause unknown: gc is a third of it."),
        (UNKNOWN, "", "Cause unknown."),
    ],
)
def test_cause_is_a_sentence(cause: str, sentence: str, said: str) -> None:
    """What is not known is said to be so."""
    view = CauseView(cause, "", 0.5, sentence, "", "", None, None, "", [])

    assert cause_sentence(view) == said
