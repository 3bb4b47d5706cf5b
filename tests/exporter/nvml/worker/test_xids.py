from exporter.nvml.worker.xids import XidCounts


def counts_of(*kinds: int) -> XidCounts:
    counts = XidCounts()
    for kind in kinds:
        counts.add(kind)
    return counts


def test_gpu_without_an_error_has_counted_none() -> None:
    """There is a 0 for all of them, and no kind by name."""
    assert (counts_of().events, counts_of().by_kind()) == (0, {})


def test_kinds_have_a_bound_and_events_do_not() -> None:
    """Each name is a series: a fourth kind counts without one, the known ones continue."""
    counts = counts_of(48, 63, 79, 119, 48)

    assert counts.by_kind() == {"48": 2, "63": 1, "79": 1}
    assert counts.events == 5


def test_programs_do_not_use_up_the_names() -> None:
    """A program that fails in many ways leaves names for what breaks next."""
    counts = counts_of(31, 13, 43, 45, 13, 31, 79, 74)

    assert counts.by_kind() == {"31": 2, "79": 1, "74": 1}
    assert counts.events == 8
