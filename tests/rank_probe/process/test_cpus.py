"""Lists of CPUs, as files of the kernel have them."""

import pytest

from rank_probe.process.cpus import MOST_CPUS, cpu_list


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("5", (5,)),
        ("0-2,8\n", (0, 1, 2, 8)),
        ("0-1,4-5", (0, 1, 4, 5)),
        ("1-", (1,)),
        ("3-1", ()),
        ("\n", ()),
        ("", ()),
        ("all", ()),
        ("3-x", ()),
        ("x", ()),
    ],
)
def test_lists_of_cpus_are_read(text: str, cpus: tuple[int, ...]) -> None:
    """Every form that the kernel writes; a NUMA node of memory only has an empty one."""
    assert cpu_list(text) == cpus


def test_list_of_cpus_is_bounded() -> None:
    """A file that is none cannot fill the memory."""
    assert len(cpu_list("0-99999999999")) == MOST_CPUS
