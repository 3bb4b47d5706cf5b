"""What a rank reads of itself and posts: without secrets, and read as it was written."""

import dataclasses
import json
import os
import resource
import zlib
from pathlib import Path

import pytest

from rank_probe.audit import gather
from rank_probe.audit.facts import HIDDEN, NodeMounts, pack, unpack
from rank_probe.audit.gather import compared, shown
from rank_probe.version import __version__
from tests.rank_probe.audit.healthy import facts


def machine(folder: Path, **files: str) -> NodeMounts:
    """Return a machine with *files* below its /proc; __ stands for /."""
    for name, text in files.items():
        path = folder / "proc" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return NodeMounts(folder / "proc", folder / "sys", folder / "dev")


def test_process_knows_its_own_limits(tmp_path: Path) -> None:
    """CPUs and variables are those of this process; the checks look at few of them."""
    mounts = machine(
        tmp_path,
        sys__kernel__hostname="node-7\n",
        sys__kernel__random__boot_id="b\n",
    )
    environment = {"NCCL_ALGO": "Ring", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "3"}
    found = gather.facts(3, 1, environment, mounts, with_torch=False)

    assert (found.rank, found.local_rank, found.node, found.machine) == (3, 1, "node-7", "b")
    assert found.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert found.compared == {"NCCL_ALGO": "Ring"}
    assert found.settings == {"CUDA_VISIBLE_DEVICES": "3"}
    assert found.versions["probe"] == __version__


def test_machine_that_shows_nothing_has_no_facts(tmp_path: Path) -> None:
    """What cannot be read is missing, and what is left can still be posted."""
    found = gather.facts(0, 0, {}, machine(tmp_path), with_torch=False)

    assert found.node == os.uname().nodename
    assert found.shared_memory_bytes is None
    assert found.cpus_of_node == 0
    assert unpack(pack(found)) == found


def test_processes_of_one_control_group_have_one_key(tmp_path: Path) -> None:
    """Another group is another key."""
    first, same, other = (
        gather.facts(0, 0, {}, machine(tmp_path, self__cgroup=group), False).container
        for group in ("0::/a\n", "0::/a\n", "0::/b")
    )

    assert first == same != other


def test_limit_on_locked_memory_does_not_bind_the_capable(tmp_path: Path) -> None:
    """CAP_IPC_LOCK is bit 14."""
    bound = machine(tmp_path, self__status="CapEff:\t0000000000003fff\n")
    limit = gather.facts(0, 0, {}, bound, False).locked_bytes
    free = machine(tmp_path, self__status="CapEff:\t0000000000004000\n")

    assert limit is not None
    assert limit < 2**63 or resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == -1
    assert gather.facts(0, 0, {}, free, False).locked_bytes == 2**63


def test_facts_arrive_as_they_were_posted() -> None:
    """Every field, with its type, and small: the store of 16,384 ranks holds tens of megabytes."""
    posted = pack(facts(5))

    assert unpack(posted) == facts(5)
    assert len(posted) < 2000


@pytest.mark.parametrize(
    "posted",
    [
        b"",
        b"nothing of ours",
        zlib.compress(b"[]"),
        zlib.compress(json.dumps({**dataclasses.asdict(facts(0)), "later": 1}).encode()),
        zlib.compress(b" " * 2**21 + json.dumps(dataclasses.asdict(facts(0))).encode()),
    ],
)
def test_anything_else_is_refused(posted: bytes) -> None:
    """What another release posts counts as not reported; a bomb is not unpacked."""
    assert unpack(posted) is None


def test_only_what_matters_is_compared() -> None:
    """Neither other variables, nor those that differ between the ranks of a healthy job."""
    environment = {
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "4",
        "PYTORCH_ALLOC_CONF": "backend:native",
        "HOME": "/root",
        "NCCL_DEBUG_FILE": "/tmp/rank3",
        "CUDA_VISIBLE_DEVICES": "3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }

    assert list(compared(environment)) == ["NCCL_ALGO", "OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FI_OPX_TOKEN", "hunter2"),
        ("NCCL_PLUGIN_SECRET", "hunter2"),
        ("UCX_AUTH", "hunter2"),
        ("FI_KEY", "hunter2"),
        ("NCCL_COMM_ID", "hunter2"),
        ("CUDA_PROXY", "http://user:hunter2@proxy:3128"),
    ],
)
def test_secrets_are_hidden(name: str, value: str) -> None:
    """Only a digest leaves the rank, which shows whether they differ."""
    assert shown(name, value).startswith(HIDDEN)
    assert "hunter2" not in shown(name, value)
    assert shown(name, value) != shown(name, f"{value}x")


def test_long_values_are_cut_and_still_differ() -> None:
    """The sentence stays readable, on any terminal."""
    first, second = shown("UCX_TLS", "a" * 500), shown("UCX_TLS", "a" * 499 + "b")

    assert len(first) < 140
    assert first != second
    assert shown("UCX_TLS", "tcp\x1b[2J").startswith("tcp?[2J... (")
