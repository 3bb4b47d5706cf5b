"""Node mounts: operations on NFS and Lustre file systems, and the time that they take."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.node.busiest import Busiest
from exporter.collectors.node.files import Mounts
from rank_probe.process.small_files import names_in, text_of

NFS: Final = re.compile(r"device (\S+) mounted on .* with fstype nfs\d?(?: |$)")
# Operations, transmissions, timeouts, bytes sent and received; then milliseconds in the queue, from
# request to answer, and altogether; kernels since 5.3 add errors. The queue is left out: whoever
# writes a checkpoint fills it, whatever the server does.
NFS_OPERATION: Final = re.compile(r"\s+[A-Z_]+: (\d+)(?: \d+){5} (\d+) \d+")
LUSTRE: Final = ("fs/lustre/llite", "kernel/debug/lustre/llite")
# Count, shortest, longest and sum; only operations that are timed, since Lustre 2.13.
LUSTRE_OPERATION: Final = re.compile(r"^\w+ +(\d+) samples \[usec\] \d+ \d+ (\d+)", re.MULTILINE)
MILLISECONDS: Final = 1_000
MICROSECONDS: Final = 1_000_000


class Export(NamedTuple):
    """A file system that others serve: *fstype* is "nfs" or "lustre"."""

    name: str
    fstype: str


class MountUse(NamedTuple):
    """How many operations have ended, and the seconds that they took, summed."""

    operations: int
    seconds: float


class NodeMountsCollector:
    """Expose the file system whose operations have taken the most time of late: a slow one does.

    Of an NFS export that is mounted several times, the first mount counts: a node of Kubernetes has
    one for each pod, which share their counts.
    """

    name = "node_mounts"
    interval_seconds = 15.0

    def __init__(self, mounts: Mounts) -> None:
        self._mounts = mounts
        self._busiest = Busiest()

    def collect(self) -> Iterator[Metric]:
        operations = CounterMetricFamily(
            "rankskew_node_mount_operations_total",
            "Operations on the NFS or Lustre file system; of the one whose operations have taken "
            "the most time of late (/proc/1/mountstats, llite in /proc or /sys, read every 15 s).",
            labels=["export", "fstype"],
        )
        seconds = CounterMetricFamily(
            "rankskew_node_mount_operation_seconds_total",
            "Time that the operations took, in seconds summed over operations: of NFS from request "
            "to answer, of Lustre altogether; of the same file system.",
            labels=["export", "fstype"],
        )
        found = (*self._nfs(), *self._lustre())
        uses = {f"{export.fstype} {export.name}": (export, use) for export, use in found}
        busiest = self._busiest.of({key: use.seconds for key, (_, use) in uses.items()})
        if busiest is not None:
            export, use = uses[busiest]
            operations.add_metric(export, use.operations)
            seconds.add_metric(export, use.seconds)
        yield from (operations, seconds)

    def _nfs(self) -> Iterator[tuple[Export, MountUse]]:
        # Each process sees its own mounts, so read those of process 1; only root may.
        procfs = self._mounts.procfs
        text = text_of(procfs / "1/mountstats") or text_of(procfs / "self/mountstats") or ""
        seen = set()
        for mount in re.split(r"^(?=device )", text, flags=re.MULTILINE):
            export = NFS.match(mount)
            if export is not None and export[1] not in seen:
                seen.add(export[1])
                found = NFS_OPERATION.findall(mount.partition("per-op statistics")[2])
                yield Export(export[1], "nfs"), _use(found, MILLISECONDS)

    def _lustre(self) -> Iterator[tuple[Export, MountUse]]:
        for root, folder in zip(self._mounts, LUSTRE, strict=True):
            for mount in names_in(root / folder):
                found = LUSTRE_OPERATION.findall(text_of(root / folder / mount / "stats") or "")
                if found:  # "scratch-ffff8f0c1e2d3000": the file system and where it is in memory.
                    yield Export(mount.rpartition("-")[0], "lustre"), _use(found, MICROSECONDS)


def _use(found: list[tuple[str, str]], units_a_second: int) -> MountUse:
    """Return the sums of what was *found*: the number of operations of a kind, and their time."""
    time = sum(int(each) for _, each in found)
    return MountUse(sum(int(count) for count, _ in found), time / units_a_second)
