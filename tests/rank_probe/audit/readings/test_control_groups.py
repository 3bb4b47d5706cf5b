"""Limits of control groups, in both versions, wherever above the process they are set."""

from pathlib import Path

import pytest

from rank_probe.audit.readings import control_groups
from rank_probe.audit.readings.files import NodeMounts

NO_MEMORY_LIMIT = (None, None)


def process_in(folder: Path, group: str, **files: str) -> NodeMounts:
    """Put the process into *group* of a machine with *files* of control groups; __ stands for /."""
    written = {"proc/self/cgroup": group}
    written |= {f"sys/fs/cgroup/{name.replace('__', '/')}": text for name, text in files.items()}
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return NodeMounts(folder / "proc", folder / "sys")


@pytest.mark.parametrize(
    ("group", "files", "quota", "memory"),
    [
        pytest.param(
            "0::/pod/container\n",
            {"pod__cpu.max": "250000 100000\n", "pod__container__cpu.max": "max 100000\n"},
            2.5,
            NO_MEMORY_LIMIT,
            id="a pod's limit binds the container in it",
        ),
        pytest.param(
            "4:memory:/\n3:cpu,cpuacct:/job\n",
            {
                "cpu__job__cpu.cfs_quota_us": "400000",
                "cpu__job__cpu.cfs_period_us": "100000",
                "cpu__cpu.cfs_quota_us": "-1",
                "cpu__cpu.cfs_period_us": "100000",
            },
            4.0,
            NO_MEMORY_LIMIT,
            id="version 1, in which -1 is no limit",
        ),
        pytest.param(
            "0::/job\n",
            {
                "job__memory.max": "1000000\n",
                "job__memory.current": "900000\n",
                "job__memory.stat": "anon 500000\ninactive_file 300000\n",
            },
            None,
            (1000000, 400000),
            id="the kernel drops the cache before it kills anybody",
        ),
        pytest.param(
            "0::/job\n",
            {"job__memory.max": "max\n", "job__cpu.max": "max 100000\n"},
            None,
            NO_MEMORY_LIMIT,
            id="no limit is no number",
        ),
        pytest.param(
            "0::/../../job\n",
            {"cpu.max": "100000 100000\n"},
            None,
            NO_MEMORY_LIMIT,
            id="in another namespace the path may lead out of the mount",
        ),
    ],
)
def test_lowest_limit_above_the_process_counts(
    tmp_path: Path,
    group: str,
    files: dict[str, str],
    quota: float | None,
    memory: tuple[int | None, int | None],
) -> None:
    """In both versions of control groups; nothing outside them is read."""
    mounts = process_in(tmp_path, group, **files)

    assert control_groups.cpu_quota(mounts) == quota
    assert control_groups.memory(mounts) == memory


def test_processes_of_one_group_have_one_key(tmp_path: Path) -> None:
    """Another group is another key."""
    first, same, other = (
        control_groups.key(process_in(tmp_path, group)) for group in ("0::/a\n", "0::/a\n", "0::/b")
    )

    assert first == same != other
