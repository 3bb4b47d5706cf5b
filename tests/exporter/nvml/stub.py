"""What the NVML tests share: timings in tenths of seconds, scenarios, and waiting."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from exporter.nvml.process import WorkerProcess
from exporter.nvml.sample import GpuSample, NodeSample
from exporter.nvml.supervisor import NvmlSupervisor
from exporter.nvml.timing import Timing
from tests.exporter.running import wait_until

# Soon over what hangs; and, where nothing does, too patient to be upset by a busy machine.
QUICK = Timing(
    interval_seconds=0.1,
    stale_seconds=0.7,
    slow_seconds=0.7,
    retry_seconds=0.1,
    window_seconds=3.0,  # What is read a few times in a window is read each second.
    # What this machine's kernel tells is no business of the stub's GPUs.
    path_sysfs="/nowhere",
    path_kmsg="/nowhere",
)
PATIENT = replace(QUICK, stale_seconds=20.0, slow_seconds=20.0)

# A driver whose only word about PCIe is the call that blocks.
ONLY_SAMPLED_PCIE = ("nvmlGpmQueryDeviceSupport * 3", "field_197 * 3", "field_198 * 3")


class Scenario:
    """The file that tells the stub what goes wrong; see nvmlstub.h."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.play()

    def play(self, *lines: str) -> None:
        """Play *lines* from the next call on, instead of what was played before."""
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.rename(self.path)  # The stub never reads half of it.


# Starts a supervisor whose worker loads the stub; see the fixture.
Supervise = Callable[..., NvmlSupervisor]


@contextmanager
def supervised(
    timing: Timing,
    environment: Mapping[str, str],
    restart_seconds: float = 0.1,
    silent_seconds: float = PATIENT.stale_seconds,
) -> Iterator[NvmlSupervisor]:
    """Run a supervisor for the length of the block.

    *timing* is its worker's, which is replaced when it says nothing for *silent_seconds*: one that
    is soon over what hangs may itself be heard late on a busy machine.
    """

    def launch(arguments: Sequence[str], environment: Mapping[str, str]) -> WorkerProcess:
        return WorkerProcess([*arguments, f"--stale-seconds={timing.stale_seconds}"], environment)

    its_timing = replace(timing, stale_seconds=silent_seconds)
    supervisor = NvmlSupervisor(its_timing, environment, restart_seconds, launch)
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()


def wait_for_sample(
    supervisor: NvmlSupervisor, condition: Callable[[NodeSample], bool]
) -> NodeSample:
    """Return the first sample for which *condition* holds."""
    found = NodeSample(0.0)

    def is_found() -> bool:
        nonlocal found
        found = supervisor.latest() or found
        return found.timestamp_seconds > 0.0 and condition(found)

    wait_until(is_found)
    return found


def gpus(supervisor: NvmlSupervisor) -> tuple[GpuSample, ...]:
    """Return the GPUs of the newest sample, none if there is no sample."""
    sample = supervisor.latest() or NodeSample(0.0)
    return sample.gpus


def ups(supervisor: NvmlSupervisor) -> list[bool]:
    """Return which GPUs answer, in the order of their index."""
    return [gpu.up for gpu in gpus(supervisor)]
