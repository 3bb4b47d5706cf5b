"""How often, and how patiently, the NVML worker reads a node."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class Timing:
    """The worker's settings, and their form on its command line."""

    interval_seconds: float = 1.0
    # A sample older than this is not served, and a call that takes longer counts as stuck; three
    # intervals at least, see patience_seconds.
    stale_seconds: float = 5.0
    # The same for calls that may wake a GPU, see calls.SLOW_FUNCTIONS.
    slow_seconds: float = 60.0
    # Wait before looking again for a missing driver or a lost GPU; doubled each time.
    retry_seconds: float = 5.0
    # Means and minima look back this far: over a usual scrape interval.
    window_seconds: float = 15.0
    # Where the kernel tells of the GPUs beside NVML; the second only to root, if at all.
    path_sysfs: str = "/sys"
    path_kmsg: str = "/dev/kmsg"

    @property
    def patience_seconds(self) -> float:
        """Age at which a sample is stale and a call is stuck."""
        return max(self.stale_seconds, 3 * self.interval_seconds)

    def to_arguments(self) -> list[str]:
        """Return the flags that from_arguments reads."""
        return [f"{_flag(name)}={value}" for name, value in asdict(self).items()]

    @classmethod
    def from_arguments(cls, arguments: Sequence[str] | None) -> Self:
        """Read the flags of the worker; None: those of this process. A wrong one exits 2."""
        parser = argparse.ArgumentParser(prog="python -m exporter.nvml.worker")
        for field in fields(cls):
            parser.add_argument(_flag(field.name), type=type(field.default), default=field.default)
        return cls(**vars(parser.parse_args(arguments)))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
