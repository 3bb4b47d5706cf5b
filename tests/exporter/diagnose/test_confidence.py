"""High confidence needs a measured amount, or a fact of its own, that explains half or more."""

import pytest

from exporter.diagnose.confidence import Suspect, confidence


@pytest.mark.parametrize(
    ("suspect", "sure"),
    [
        (Suspect("gc", "", 0.9), "high"),
        (Suspect("slow_device", "clocks", 0.5), "high"),
        (Suspect("slow_device", "clocks", 0.49), "low"),
        (Suspect("input", "workers", 0.97), "high"),
        (Suspect("input", "storage", 1.0), "medium"),
        (Suspect("cpu", "", 1.0), "medium"),
        (Suspect("network", "", 1.0), "medium"),
        (Suspect("input", "", 1.0), "low"),
        (Suspect("extra_duties", "checkpoint", 0.95), "high"),
        (Suspect("extra_duties", "other", 1.0), "low"),
        (Suspect("unknown", "", 1.0), "low"),
        (Suspect("a_newer_cause", "", 1.0), "low"),
    ],
)
def test_confidence_follows_from_how_the_cause_is_known(suspect: Suspect, sure: str) -> None:
    """A fact of the node is shared, and the stage alone is no evidence."""
    assert confidence(suspect, [suspect])[0] == sure


def test_rival_with_as_good_evidence_lowers_it() -> None:
    """Of two measured amounts that each explain it, one is wrong; a mere hint is no rival."""
    clocks, tokens = Suspect("slow_device", "clocks", 0.9), Suspect("uneven_batches", "", 0.6)

    assert confidence(tokens, [clocks, tokens]) == (
        "medium",
        "a measured amount explains 60% of its lateness, but so does another: slow GPU",
    )
    assert confidence(tokens, [tokens, Suspect("input", "", 1.0)])[0] == "high"
