"""Slurm: drains a node, with a reason by which it is known again, and undrains it."""

import re
import subprocess
from collections import defaultdict
from typing import Final

from exporter.errors import StartError
from exporter.errors import reason as why
from rankskew.act.targets.target import OURS, Line, reason
from rankskew.client.fetch import Trouble

# slurmctld answers within MessageTimeout, ten seconds by default.
TIMEOUT_SECONDS: Final = 30.0
# Of `scontrol --oneliner show node`: the reason, up to who gave it and when.
REASON: Final = re.compile(r"\bReason=(.*?)(?: \[[^\[\]@]+@|\s*$)")
STATE: Final = re.compile(r"\bState=(\S+)")


class Slurm:
    """The Slurm whose scontrol and sinfo are in PATH; this user must be its administrator."""

    name = "slurm"

    def __init__(self) -> None:
        try:
            self.pools()
        except Trouble as trouble:
            raise StartError(f"--slurm: {trouble}") from trouble

    def pools(self) -> dict[str, frozenset[str]]:
        """Return the nodes of each partition."""
        found: dict[str, set[str]] = defaultdict(set)
        for line in _run("sinfo", "--noheader", "--Node", "--format=%N|%R").splitlines():
            name, _, partition = line.strip().partition("|")
            found[f"partition {partition}"].add(name)
        return {partition: frozenset(names) for partition, names in found.items()}

    def holds(self, name: str) -> bool:
        """Say whether the node is drained, and for our reason."""
        drained_for = self._drained_for(name)
        return drained_for is not None and drained_for.startswith(OURS)

    def hold(self, line: Line) -> None:
        """Drain the node, unless somebody else has drained it."""
        name = line["name"]
        drained_for = self._drained_for(name)
        if drained_for is None:
            _run("scontrol", "update", f"nodename={name}", "state=drain", f"reason={reason(line)}")
        elif not drained_for.startswith(OURS):
            raise Trouble(f"{name} is drained already, for another reason: {drained_for}.")

    def free(self, line: Line) -> None:
        """Undrain the node if the reason is still ours; one that is down stays down."""
        if self.holds(line["name"]):
            _run("scontrol", "update", f"nodename={line['name']}", "state=undrain")

    def _drained_for(self, name: str) -> str | None:
        """Return why the node is drained; None if it is not."""
        said = _run("scontrol", "--oneliner", "show", "node", name)
        state, given = STATE.search(said), REASON.search(said)
        if state is None:
            raise Trouble(f"scontrol shows no state of the node {name}.")
        return (given[1] if given else "none") if "DRAIN" in state[1] else None


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except OSError as error:
        raise Trouble(f"cannot run {command[0]}: {why(error)}.") from error
    except subprocess.TimeoutExpired as error:
        raise Trouble(f"{command[0]} does not answer within {TIMEOUT_SECONDS:.0f} s.") from error
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise Trouble(f"{command[0]} fails: {said or f'status {done.returncode}'}.")
    return done.stdout
