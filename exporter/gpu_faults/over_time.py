"""Faults that only a comparison with some time ago, or with the node's other GPUs, shows."""

from collections.abc import Iterator, Mapping
from typing import Final

from exporter.gpu_faults.fault import (
    MEMORY,
    NVLINK,
    NVLINK_ERRORS,
    NVLINK_RECOVERIES,
    PCIE_ERRORS,
    PCIE_SATURATED,
    PSTATE,
    STANDS_STILL,
    THROTTLED,
    XID,
    Fault,
)
from exporter.nvml.sample import GpuSample, pcie_bytes_per_second
from exporter.past import LOOK_SECONDS, Past

HOUR: Final = 3600.0
TEN_MINUTES: Final = 600.0
FIVE_MINUTES: Final = 300.0
# A slow state that lasts this long is not just a change of state.
PSTATE_SECONDS: Final = 120.0
# P3 and slower save power, whatever the neighbours do.
SLOWEST_AT_WORK: Final = 2
# Nobody waits for a GPU that is idle for nine tenths of the time.
BUSY_PERCENT: Final = 10.0
# It waits for its link if it computes for less than half of the time.
COMPUTES_PERCENT: Final = 50.0
# A kernel that hangs, such as a collective that lacks a rank, spins: the GPU is fully busy at low
# power that changes by less than a tenth. NCCL's kernel takes a quarter of an H100's SMs.
FULLY_BUSY_PERCENT: Final = 99.0
LOW_POWER: Final = 1 / 3
FLAT_POWER: Final = 0.1
# hw_slowdown covers every hw_ reason.
THROTTLE_REASONS: Final = ("hw_slowdown", "sw_thermal_slowdown")
# A link that recovers in so many windows of five minutes within an hour may soon die.
RECOVERING_WINDOWS: Final = 3
LINK_ERRORS: Final = "link_errors_per_second"

Gpus = Mapping[str, GpuSample]


class GpuMemory:
    """What the node's GPUs, by their key, showed up to an hour ago.

    A memory younger than a window compares with the first reading that it has.
    """

    def __init__(self) -> None:
        self._hour = Past(HOUR)
        self._ten_minutes = Past(TEN_MINUTES)
        self._five_minutes = Past(FIVE_MINUTES)
        self._xids: dict[str, set[str]] = {}
        self._worker_pid = 0
        self._slow_since: dict[str, float] = {}
        self._spins: dict[str, tuple[float, int]] = {}  # Since when, and at which power.
        self._carried: dict[tuple[str, str], tuple[float, float, float]] = {}
        self._seen_seconds: float | None = None

    def see(self, gpus: Gpus, now: float, worker_pid: int) -> None:
        """Remember the readings of *gpus*, which the worker *worker_pid* took."""
        if self._seen_seconds is not None and now - self._seen_seconds < LOOK_SECONDS:
            return
        self._seen_seconds = now
        if worker_pid != self._worker_pid:
            self._worker_pid = worker_pid
            self._ten_minutes.begin_again()
        fastest = _fastest_state(gpus)
        for key, gpu in gpus.items():
            for figure, lasting in (
                ("ecc", gpu.ecc_uncorrected_errors),
                ("nvlink", gpu.nvlink_links_up),
            ):
                if lasting is not None:
                    self._hour.see((key, figure), lasting, now)
            for link, recoveries in (gpu.nvlink_link_recoveries or {}).items():
                self._hour.count((key, "recovery", link), recoveries, now)
            # Count the first error of a kind as well. A new worker starts from zero.
            xids = gpu.xid_errors or {}
            self._xids[key] = {*xids, *self._xids.get(key, ())}
            for xid in self._xids[key]:
                self._ten_minutes.count((key, xid), xids.get(xid, 0), now, first=0.0)
            for figure, total in _counters(gpu):
                self._five_minutes.count((key, figure), total, now)
            self._see_traffic(key, gpu, now)
            power = gpu.power_milliwatts or 0
            since, drawn = self._spins.pop(key, (now, power))
            if _spins(gpu):
                is_flat = abs(power - drawn) <= FLAT_POWER * drawn
                self._spins[key] = (since, drawn) if is_flat else (now, power)
            if gpu.performance_state is None or gpu.performance_state <= fastest:
                self._slow_since.pop(key, None)
            else:
                self._slow_since.setdefault(key, now)

    def faults(self, key: str, gpus: Gpus, now: float) -> Iterator[Fault]:
        """Yield the faults of the GPU *key* among *gpus*, which see() has seen."""
        gpu = gpus[key]
        errors = gpu.ecc_uncorrected_errors
        if errors and self._hour.increase((key, "ecc"), errors) > 0:
            yield Fault(MEMORY, "uncorrected")
        yield from self._nvlink(key, gpu, gpus)
        for xid in sorted(self._xids.get(key, ())):
            if self._ten_minutes.increase((key, xid)) > 0:
                yield Fault(XID, xid)
        yield from self._recovering(key, gpu)
        yield from self._errors_of_links(key, gpu)
        if now - self._slow_since.get(key, now) >= PSTATE_SECONDS and _is_busy(gpu):
            yield Fault(PSTATE, f"P{gpu.performance_state}")
        if now - self._spins.get(key, (now, 0))[0] >= FIVE_MINUTES:
            yield Fault(STANDS_STILL)
        yield from self._throttled(key, gpu)
        yield from self._saturated(key, gpu)

    def _nvlink(self, key: str, gpu: GpuSample, gpus: Gpus) -> Iterator[Fault]:
        """Yield a fault if fewer links are up than an hour ago, or than on its neighbours.

        The number of existing links is no measure: bridges may leave some unused, and a card
        without a bridge has none up. MIG takes links down on purpose.
        """
        up = gpu.nvlink_links_up
        if up is None or gpu.mig_devices is not None:
            return
        most = max(each.nvlink_links_up or 0 for each in gpus.values())
        if self._hour.increase((key, "nvlink"), up) < 0 or 0 < up < most:
            yield Fault(NVLINK, ",".join(sorted(gpu.nvlink_link_states or {}, key=int)))

    def _recovering(self, key: str, gpu: GpuSample) -> Iterator[Fault]:
        """Yield links that recover again and again, unless most of the GPU's links do."""
        links = gpu.nvlink_link_recoveries or {}
        grew = {link: self._hour.changed((key, "recovery", link)) for link in links}
        windows = {link: len({at // FIVE_MINUTES for at in grew[link]}) for link in links}
        again = [link for link in links if windows[link] >= RECOVERING_WINDOWS]
        if 0 < len(again) <= len(links) / 2:
            yield Fault(NVLINK_RECOVERIES, ",".join(again))

    def _errors_of_links(self, key: str, gpu: GpuSample) -> Iterator[Fault]:
        """Yield links that send damaged packets again, with their errors per second."""
        per_second = {
            figure: self._five_minutes.increase((key, figure), count) / FIVE_MINUTES
            for figure, count in _counters(gpu)
            if figure not in THROTTLE_REASONS
        }
        pcie = max(per_second.pop("pcie_errors", 0.0), per_second.pop("pcie_replays", 0.0))
        yield Fault(PCIE_ERRORS, threshold=LINK_ERRORS, figure=pcie)
        if per_second:
            worst = max(per_second, key=lambda link: per_second[link])
            yield Fault(NVLINK_ERRORS, worst, threshold=LINK_ERRORS, figure=per_second[worst])

    def _throttled(self, key: str, gpu: GpuSample) -> Iterator[Fault]:
        if not _is_busy(gpu):
            return
        for reason in THROTTLE_REASONS:
            seconds = (gpu.throttle_seconds or {}).get(reason, 0.0)
            share = self._five_minutes.increase((key, reason), seconds) / FIVE_MINUTES
            if share > 0:
                yield Fault(THROTTLED, reason, share, "throttle_ratio", share)

    def _see_traffic(self, key: str, gpu: GpuSample, now: float) -> None:
        """Add up what both directions of the PCIe link carry, for their means."""
        for direction, rate in (
            ("transmit", gpu.pcie_transmit_bytes_per_second),
            ("receive", gpu.pcie_receive_bytes_per_second),
        ):
            which = key, direction
            if rate is None:
                self._carried.pop(which, None)
                self._five_minutes.drop(which)
                continue
            since, total, before = self._carried.get(which, (now, 0.0, rate))
            total += (now - since) * (before + rate) / 2
            self._carried[which] = now, total, rate
            self._five_minutes.see(which, total, now)

    def _saturated(self, key: str, gpu: GpuSample) -> Iterator[Fault]:
        """Yield the mean rate of the busier direction, as a share of what the link can carry.

        Only for a GPU that hardly computes, by SM activity if known: utilization also counts a
        kernel that waits.
        """
        computes = gpu.sm_active_percent
        computes = gpu.gpu_busy_percent if computes is None else computes
        if computes is None or computes >= COMPUTES_PERCENT:
            return
        rated = pcie_bytes_per_second(gpu.pcie_link_generation_max, gpu.pcie_link_width)
        if rated is None:
            return
        rates = {way: self._mean_rate(key, way) for way in ("transmit", "receive")}
        way = max(rates, key=lambda each: rates[each])
        share = rates[way] / rated
        if share > 0:
            yield Fault(PCIE_SATURATED, way, share, "pcie_ratio", share)

    def _mean_rate(self, key: str, direction: str) -> float:
        """Return the mean bytes per second of the last five minutes up to the last look."""
        then = self._five_minutes.then((key, direction))
        last = self._carried.get((key, direction))
        if then is None or last is None or last[0] <= then[0]:
            return 0.0
        return (last[1] - then[1]) / (last[0] - then[0])


def _counters(gpu: GpuSample) -> Iterator[tuple[str, float]]:
    """Yield what is compared with five minutes ago; an NVLink is called by its number."""
    for figure, count in (("pcie_errors", gpu.pcie_errors), ("pcie_replays", gpu.pcie_replays)):
        if count is not None:
            yield figure, count
    yield from (gpu.nvlink_link_errors or {}).items()
    for reason in THROTTLE_REASONS:
        if gpu.throttle_seconds is not None and reason in gpu.throttle_seconds:
            yield reason, gpu.throttle_seconds[reason]


def _fastest_state(gpus: Gpus) -> int:
    """Return the slowest normal state: that of the fastest GPU, but at most P2."""
    known = (each.performance_state for each in gpus.values())
    return min((*(state for state in known if state is not None), SLOWEST_AT_WORK))


def _is_busy(gpu: GpuSample) -> bool:
    if gpu.gpu_busy_percent is not None:
        return gpu.gpu_busy_percent > BUSY_PERCENT
    return any((part.sm_active_percent or 0) > BUSY_PERCENT for part in gpu.mig_devices or ())


def _spins(gpu: GpuSample) -> bool:
    """Whether it is fully busy at little power, and its cores, where known, do next to nothing."""
    return (
        0 < (gpu.power_milliwatts or 0) <= LOW_POWER * (gpu.power_limit_milliwatts or 0)
        and (gpu.gpu_busy_percent or 0.0) >= FULLY_BUSY_PERCENT
        and (gpu.sm_active_percent or 0.0) < COMPUTES_PERCENT
        and (gpu.tensor_active_percent or 0.0) < 1.0
    )
