"""What `rankskew diagnose` has to say of each job of the tour, and whether it does."""

import contextlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from devstack.parts import RULES
from exporter.errors import UsageError
from rankskew.commands import diagnose

FOUND, BALANCED, CANNOT_TELL = 1, 0, 2
# The only late rank of each job of the tour, and the ranks of its node.
LATE_RANK: Final = 6
LATE_NODE: Final = (4, 5, 6, 7)


@dataclass(frozen=True)
class Expected:
    """What is right: any of *what* and of its *details*, a part of the *first* action's words.

    *ranks* that are none of them are wrong; empty or None: does not apply.
    """

    status: int
    what: tuple[str, ...] = ()
    detail: str | None = None
    ranks: tuple[int, ...] = ()
    stage: str | None = None
    first: str = ""


def _late(what: str, detail: str, stage: str, first: str) -> Expected:
    return Expected(FOUND, (what,), detail, (LATE_RANK,), stage, first)


def _slow_node(what: str, detail: str, stage: str, first: str) -> Expected:
    return Expected(FOUND, (what,), detail, LATE_NODE, stage, first)


# By the job of the tour, which is named after its fault.
TOUR: Final = {
    "healthy": Expected(BALANCED),
    "loader": _late("input", "workers", "data", "pgrep -P 20006"),
    "storage": _late("input", "reads", "data", "iostat"),
    "thermal": _late("slow_device", "clocks", "backward", "CLOCK,PERFORMANCE,TEMPERATURE"),
    "pcie": _late("slow_device", "pcie_link", "h2d", "Link Info"),
    "aer": _late("slow_device", "pcie_errors", "h2d", "grep -i replay"),
    "weaklink": _late("slow_device", "nvlink_errors", "backward", "nvidia-smi nvlink -e"),
    "pstate": _late("slow_device", "pstate", "backward", "PERFORMANCE,CLOCK"),
    "decoder": _late("input", "decoder", "data", "nvidia-smi dmon"),
    "foreign": _late("foreign_process", "", "backward", "find its owner with `nvidia-smi -i"),
    "cpu": _late("cpu", "throttled", "forward", "raise the CPU limit"),
    "gc": _late("gc", "", "other", "py-spy dump --pid 20006"),
    "batches": _late("uneven_batches", "", "backward", "how long its samples are"),
    "checkpoint": _late("extra_duties", "checkpoint", "checkpoint", "py-spy dump --pid 20006"),
    "sleep": _late("code", "sleep", "data", "py-spy dump --pid 20006"),
    "lock": _late("code", "lock", "other", "py-spy dump --pid 20006"),
    "worker": _late("input", "worker_socket", "data", "pgrep -P 20006"),
    "mount": _late("input", "mount", "data", "py-spy dump --pid 20006"),
    "node": _slow_node("cpu", "node", "forward", "top"),
    "network": _slow_node("network", "errors", "forward", "ip -s link"),
    "disk": _slow_node("input", "disk", "data", "iostat"),
    "nfs": _slow_node("input", "nfs", "data", "nfsiostat"),
    "lustre": _slow_node("input", "lustre", "data", "lctl get_param"),
    "cpuheat": _slow_node("cpu", "thermal", "forward", "turbostat"),
    "cpuclock": _slow_node("cpu", "frequency", "forward", "scaling_governor"),
    "numa": _slow_node("cpu", "numa_miss", "forward", "numastat"),
    "congestion": _slow_node("network", "congestion", "forward", "port_xmit_wait"),
    "retransmits": _slow_node("network", "retransmits", "data", "ss -tinp"),
    "slowport": _slow_node("network", "speed", "forward", "ibstat"),
    "rotating": Expected(FOUND, ("rotating",), stage="backward", first="work of the ranks"),
    "hang": _late("hung", "", "data", "py-spy dump --pid 20006"),
    "frozen": _late("hung", "", "frozen", "py-spy dump --pid 20006"),
    "oom": _late("hung", "", "frozen", "py-spy dump --pid 20006"),
    "lost": _late("hung", "", "backward", "py-spy dump --pid 20006"),
    "deadlock": Expected(FOUND, ("hung_together",), first="py-spy dump"),
    "killed": Expected(FOUND, ("ranks_silent",), first="dmesg"),
    "memory": Expected(FOUND, ("gpu_memory",), ranks=(LATE_RANK,), first="ECC,ROW_REMAPPER"),
    "nvlink": Expected(FOUND, ("nvlink_down",), ranks=(LATE_RANK,), first="nvlink -s"),
    "filer": Expected(FOUND, ("slower",), stage="data", first="look at what began"),
    "missing": Expected(FOUND, ("ranks_without_probe",), ranks=LATE_NODE, first="environ"),
    "nosync": Expected(CANNOT_TELL, ("no_sync",), first="mark the collective"),
    "nojoin": _late("input", "workers", "data", "pgrep -P 20006"),
    "off": Expected(CANNOT_TELL, ("off",), first="rankskew control"),
    "starting": Expected(FOUND, ("slow_start",), first="py-spy dump"),
    "finished": Expected(CANNOT_TELL, ("finished",), first="--at"),
    "noprobe": Expected(CANNOT_TELL, ("no_probe",), first="rank_probe"),
    "down": Expected(FOUND, ("exporter_down",), first="systemctl status rankskew-exporter"),
}


def ask(*arguments: str) -> dict[str, Any]:
    """Return the document that the command prints, with its exit status."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            status = diagnose.run([*arguments, "--json"])
        except UsageError as error:
            return {"trouble": str(error), "exit_status": 2}
    document: dict[str, Any] = json.loads(printed.getvalue())
    return document | {"exit_status": status}


def wrong_parts(expected: Expected, document: Mapping[str, Any]) -> list[str]:
    """Return which parts of the answer are wrong.

    The first finding counts, and for the late ranks all that name any.
    """
    findings: Sequence[Mapping[str, Any]] = document.get("findings", ())
    first = findings[0] if findings else {}
    cause = first.get("cause") or {}
    right = {
        "rank": not expected.ranks or _ranks(findings) == set(expected.ranks),
        "stage": not expected.stage or first.get("stage") == expected.stage,
        "cause": not expected.what or first.get("what") in expected.what,
        "detail": expected.detail is None or cause.get("detail", "") == expected.detail,
        "first action": expected.first in (first.get("first") or ""),
        "exit status": document["exit_status"] == expected.status,
    }
    return [part for part, is_right in right.items() if not is_right]


def _ranks(findings: Sequence[Mapping[str, Any]]) -> set[int]:
    late = [each for each in findings if each["cause"] is not None] or findings[:1]
    return {rank for each in late for rank in each["ranks"]}


def fast_rules(directory: Path, rules: Path = RULES) -> Path:
    """Write *rules*, those shipped by default, all evaluated as often as they can be."""
    directory.mkdir()
    for path in rules.glob("*.yaml"):
        text = re.sub(r"^    interval: .*\n", "", path.read_text(), flags=re.MULTILINE)
        (directory / path.name).write_text(text)
    return directory
