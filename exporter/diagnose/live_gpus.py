"""What the live summaries say of the GPUs of late ranks, as evidence for a cause."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from exporter.client.fields import number, objects, text, texts, whole
from exporter.diagnose.confidence import Suspect
from exporter.diagnose.model import Figure, Finding, Place
from exporter.live.sentences import LateView
from exporter.top.model import Job
from exporter.top.words import NOTHING

# A GPU explains delays in these stages.
ON_GPU: Final = ("h2d", "forward", "backward", "compute", "optimizer")
# Clocks of equal GPUs differ by less.
SLOWER_CLOCK: Final = 0.02


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs in the live summaries of all exporters that were asked."""

    said: Sequence[Mapping[str, Any]]

    def of(self, place: Place) -> Mapping[str, Any] | None:
        """Return the GPU at *place*, None if no exporter shows it."""
        return next(
            (
                each
                for each in self.said
                if place.gpu_uuid and each.get("gpu_uuid") == place.gpu_uuid
            ),
            None,
        )

    def usual(self, field: str, without: Mapping[str, Any]) -> float | None:
        """Return the median of *field* over the other GPUs that have a rank, None without any."""
        found = [
            value
            for each in self.said
            if each is not without and each.get("ranks")
            if (value := number(each.get(field))) is not None
        ]
        return median(found) if found else None


def gpu_suspects(
    gpus: Gpus, place: Place, late: LateView, is_node: bool
) -> tuple[list[Figure], list[Suspect]]:
    """Return what a late rank's GPU shows, and the causes that this speaks for."""
    gpu = gpus.of(place)
    if gpu is None or late.stage not in ON_GPU or is_node:
        return [], []
    figures, suspects = [], []
    # In the order of the rules.
    for figure, suspect in (*_clock(gpus, gpu, late), *_foreign(gpus, gpu), *_link(gpu)):
        figures.append(figure)
        suspects.append(suspect)
    return figures, suspects


def _clock(gpus: Gpus, gpu: Mapping[str, Any], late: LateView) -> Iterator[tuple[Figure, Suspect]]:
    own, usual = number(gpu.get("sm_clock_hertz")), gpus.usual("sm_clock_hertz", gpu)
    if own and usual and usual / own - 1 > SLOWER_CLOCK:
        share = min(1.0, (usual / own - 1) / max(late.ratio, 1e-3))
        reasons = " and ".join(texts(gpu.get("throttle_reasons")))
        name = f"SM clock ({reasons})" if reasons else "SM clock"
        figure = Figure(name, "hertz", own, usual, "other GPUs")
        yield figure, Suspect("slow_device", "clocks", share)


def _foreign(gpus: Gpus, gpu: Mapping[str, Any]) -> Iterator[tuple[Figure, Suspect]]:
    foreign = number(gpu.get("foreign_processes"))
    if foreign:
        others = gpus.usual("foreign_processes", gpu)
        figure = Figure("foreign processes", "count", foreign, others, "other GPUs")
        yield figure, Suspect("foreign_process")


def _link(gpu: Mapping[str, Any]) -> Iterator[tuple[Figure, Suspect]]:
    width, most = number(gpu.get("pcie_link_width")), number(gpu.get("pcie_link_width_max"))
    if width and most and width < most:
        figure = Figure("PCIe lanes", "count", width, most, "its maximum")
        yield figure, Suspect("slow_device", "pcie_link")


def lost_gpus(gpus: Gpus, job: Job) -> Iterator[Finding]:
    """Yield a finding for each GPU of *job* that does not answer."""
    for gpu in gpus.said:
        ranks = [
            rank
            for each in objects(gpu.get("ranks"))
            if each.get("job_id") == job.job_id and (rank := whole(each.get("rank"))) is not None
        ]
        if gpu.get("up") is False and ranks:
            place = next((r for r in job.ranks if r.rank == ranks[0]), None)
            node = place.node if place is not None else None
            yield Finding(
                "gpu_lost",
                f"The GPU of rank {ranks[0]} on {node or NOTHING} does not answer.",
                rank=ranks[0],
                ranks=tuple(ranks),
                place=Place(
                    node=node,
                    gpu=str(whole(gpu.get("gpu"))),
                    gpu_uuid=text(gpu.get("gpu_uuid")),
                    pid=place.pid if place is not None else None,
                ),
            )
