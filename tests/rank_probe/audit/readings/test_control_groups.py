"""Limits of control groups, in both versions, wherever above the process they are set."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from rank_probe.audit.readings import control_groups
from rank_probe.audit.readings.files import NodeMounts


@pytest.fixture
def mounts(tmp_path: Path) -> NodeMounts:
    """An empty machine."""
    return NodeMounts(tmp_path / "proc", tmp_path / "sys")


def write(mounts: NodeMounts, cgroup: str, files: Mapping[str, str] = MappingProxyType({})) -> None:
    """Put the process into *cgroup*, and write *files* below the mount of control groups."""
    (mounts.procfs / "self").mkdir(parents=True, exist_ok=True)
    (mounts.procfs / "self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = mounts.sysfs / "fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_lowest_quota_above_the_process_counts(mounts: NodeMounts) -> None:
    """A pod's limit binds the container in it."""
    write(
        mounts,
        "0::/pod/container\n",
        {"pod/cpu.max": "250000 100000\n", "pod/container/cpu.max": "max 100000\n"},
    )

    assert control_groups.cpu_quota(mounts) == 2.5


def test_quota_of_version_1(mounts: NodeMounts) -> None:
    """-1 is no limit."""
    write(
        mounts,
        "4:memory:/\n3:cpu,cpuacct:/job\n",
        {
            "cpu/job/cpu.cfs_quota_us": "400000",
            "cpu/job/cpu.cfs_period_us": "100000",
            "cpu/cpu.cfs_quota_us": "-1",
            "cpu/cpu.cfs_period_us": "100000",
        },
    )

    assert control_groups.cpu_quota(mounts) == 4.0


def test_memory_that_is_left_counts_the_cache(mounts: NodeMounts) -> None:
    """The kernel drops the cache before it kills anybody."""
    write(
        mounts,
        "0::/job\n",
        {
            "job/memory.max": "1000000\n",
            "job/memory.current": "900000\n",
            "job/memory.stat": "anon 500000\ninactive_file 300000\n",
        },
    )

    assert control_groups.memory(mounts) == (1000000, 400000)


def test_machine_without_limits_has_none(mounts: NodeMounts) -> None:
    """No limit is no number."""
    write(mounts, "0::/job\n", {"job/memory.max": "max\n", "job/cpu.max": "max 100000\n"})

    assert control_groups.cpu_quota(mounts) is None
    assert control_groups.memory(mounts) == (None, None)


def test_path_outside_the_mount_is_not_followed(mounts: NodeMounts) -> None:
    """In a container of another namespace the path may begin with /.. ."""
    write(mounts, "0::/../../job\n", {"cpu.max": "100000 100000\n"})

    assert control_groups.cpu_quota(mounts) is None


def test_processes_of_one_group_have_one_key(mounts: NodeMounts) -> None:
    """Another group is another key."""
    write(mounts, "0::/a\n")
    first = control_groups.key(mounts)
    same = control_groups.key(mounts)
    write(mounts, "0::/b\n")

    assert first == same != control_groups.key(mounts)
