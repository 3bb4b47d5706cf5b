"""What a process reads of itself and of its node."""

import os
import resource
from pathlib import Path

from rank_probe.audit.readings import gather
from rank_probe.audit.readings.facts import pack, unpack
from rank_probe.audit.readings.files import NodeMounts
from rank_probe.version import __version__


def machine(folder: Path, **files: str) -> NodeMounts:
    """Return a machine with *files* below its /proc; __ stands for /."""
    for name, text in files.items():
        path = folder / "proc" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return NodeMounts(folder / "proc", folder / "sys", folder / "dev")


def test_process_knows_its_own_limits(tmp_path: Path) -> None:
    """CPUs, open files and variables are those of this very process."""
    mounts = machine(tmp_path, sys__kernel__hostname="node-7\n", sys__kernel__random__boot_id="b\n")
    facts = gather.facts(3, 1, {"NCCL_ALGO": "Ring"}, mounts, with_torch=False)

    assert (facts.rank, facts.local_rank, facts.node, facts.machine) == (3, 1, "node-7", "b")
    assert facts.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert facts.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert facts.compared == {"NCCL_ALGO": "Ring"}
    assert facts.versions["probe"] == __version__


def test_machine_that_shows_nothing_has_no_facts(tmp_path: Path) -> None:
    """What cannot be read is missing, and what is left can still be posted."""
    facts = gather.facts(0, 0, {}, machine(tmp_path), with_torch=False)

    assert facts.node == os.uname().nodename
    assert (facts.memory_free_bytes, facts.shared_memory_bytes, facts.cpus_of_node) == (
        None,
        None,
        0,
    )
    assert unpack(pack(facts)) == facts


def test_memory_is_what_the_kernel_calls_available(tmp_path: Path) -> None:
    """Free memory alone would leave out the cache."""
    mounts = machine(tmp_path, meminfo="MemFree: 1 kB\nMemAvailable:   2048 kB\n")

    assert gather.facts(0, 0, {}, mounts, False).memory_free_bytes == 2 * 2**20


def test_limit_on_locked_memory_does_not_bind_the_capable(tmp_path: Path) -> None:
    """CAP_IPC_LOCK is bit 14."""
    bound = machine(tmp_path, self__status="CapEff:\t0000000000003fff\n")
    limit = gather.facts(0, 0, {}, bound, False).locked_bytes
    free = machine(tmp_path, self__status="CapEff:\t0000000000004000\n")

    assert limit is not None
    assert limit < 2**63 or resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == -1
    assert gather.facts(0, 0, {}, free, False).locked_bytes == 2**63
