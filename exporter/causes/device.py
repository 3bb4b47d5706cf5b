"""Causes: a GPU that is slower than its peers', or that somebody else uses too."""

from functools import partial
from typing import Final

from exporter.causes.model import BLOCKED, GPU, RUNNING
from exporter.causes.row import ON_GPU, CauseRow, Certainty
from exporter.causes.shares import has_less, has_more, slower, unless

SLOW_DEVICE: Final = "slow_device"
# States of a thread that waits for a GPU: torch spins, or the driver blocks the thread.
WAITS_FOR_GPU: Final = frozenset({RUNNING, GPU, BLOCKED})
# Clocks of equal GPUs under equal load differ by less.
LOWER_CLOCK: Final = 0.02
# Throttled for a tenth of the time at half the clock, a GPU loses a twentieth.
THROTTLED: Final = 0.1
# A healthy link has a few errors a day.
ERRORS_PER_SECOND: Final = 1.0
# Lanes and generations halve: there is nothing between.
SLOWER_LINK: Final = 0.9
# One NVLink of 18 is a twentieth.
FEWER_LINKS: Final = 0.99

_of_gpu = partial(
    CauseRow,
    cause=SLOW_DEVICE,
    certainty=Certainty.FACT,
    stages=ON_GPU,
    states=WAITS_FOR_GPU,
    healthy=0.0,
)
ROWS: Final = (
    _of_gpu(
        detail="pstate",
        certainty=Certainty.REASON,
        figure="memory_clock_hertz",
        share=slower(LOWER_CLOCK),
        lowers=True,
        says="its GPU's memory clock is {own}, its peers' {peers}[ (performance state {fact})]",
        before="the GPUs' memory clock is {own}, before {peers}[ (performance state {fact})]",
        first_action="`nvidia-smi -q -i UUID -d PERFORMANCE,CLOCK` on NODE, under load",
    ),
    _of_gpu(
        detail="clocks",
        certainty=Certainty.AMOUNT,
        figure="sm_clock_hertz",
        share=slower(LOWER_CLOCK),
        lowers=True,
        says="its SM clock is {own}, its peers' {peers}[: {fact}[, {temperature}]]",
        before="the GPUs' SM clock is {own}, before {peers}[: {fact}]",
        first_action="`nvidia-smi -q -i UUID -d CLOCK,PERFORMANCE,TEMPERATURE,POWER` on NODE",
    ),
    _of_gpu(
        cause="foreign_process",
        figure="gpu_foreign_processes",
        share=has_more(0.5),
        says="it shares its GPU with {own} foreign process{es}[ ({fact})]"
        "[, its peers with {peers}]",
        first_action="find its owner with `nvidia-smi -i UUID` on NODE",
    ),
    _of_gpu(
        detail="memory",
        figure="gpu_memory_faults",
        share=has_more(0.5),
        says="its GPU's count of memory faults is {own}[, its peers' {peers}]",
        first_action="`nvidia-smi -q -i UUID -d ECC,ROW_REMAPPER` on NODE: which errors grow?",
    ),
    _of_gpu(
        detail="pcie_link",
        figure="pcie_link_bytes_per_second",
        share=has_less(SLOWER_LINK),
        lowers=True,
        says="its GPU's PCIe link runs at {own}[ ({fact})], its peers' at {peers}",
        first_action="`nvidia-smi -q -i UUID | grep -A9 'Link Info'` on NODE, under load",
    ),
    _of_gpu(
        detail="pcie_errors",
        figure="pcie_errors_per_second",
        share=has_more(ERRORS_PER_SECOND),
        says="its GPU's PCIe link has an error rate of {own}[, its peers' {peers}]",
        first_action="`nvidia-smi -q -i UUID | grep -i replay` on NODE, twice: does it grow?",
    ),
    _of_gpu(
        detail="nvlink",
        figure="nvlink_links_up",
        share=has_less(FEWER_LINKS),
        lowers=True,
        says="its GPU has {own} NVLinks up, its peers' {peers}",
        first_action="`nvidia-smi nvlink -s -i UUID` on NODE: which link is down?",
    ),
    _of_gpu(
        detail="nvlink_errors",
        figure="nvlink_errors_per_second",
        share=has_more(ERRORS_PER_SECOND),
        says="its GPU's NVLinks have an error rate of {own}[, its peers' {peers}]",
        first_action="`nvidia-smi nvlink -e -i UUID` on NODE: which link counts errors?",
    ),
    # Where clocks cannot be read. A throttled GPU with the clock of its peers is not slow.
    _of_gpu(
        detail="clocks",
        figure="gpu_throttled_ratio",
        share=unless("sm_clock_hertz", has_more(THROTTLED)),
        says="its GPU is throttled {own} of the time[, its peers' {peers}]"
        "[: {fact}[, {temperature}]]",
        before="the GPUs are throttled {own} of the time, before {peers}[: {fact}]",
        first_action="`nvidia-smi -q -i UUID -d CLOCK,PERFORMANCE,TEMPERATURE,POWER` on NODE",
    ),
)
