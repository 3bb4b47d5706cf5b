"""How often the NVML worker reads a node, and how long it waits for answers."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class Timing:
    """The worker's settings, and their form on its command line."""

    interval_seconds: float = 1.0
    # A sample older than this is not served, and a call that takes longer counts as stuck; at least
    # three intervals, see patience_seconds.
    stale_seconds: float = 5.0
    # The same for calls that may have to wake a GPU, see calls.SLOW_FUNCTIONS.
    slow_seconds: float = 60.0
    # Wait before retrying after a missing driver or a lost GPU; doubled each time.
    retry_seconds: float = 5.0
    # Means and minima cover this time: a usual scrape interval.
    window_seconds: float = 15.0
    # Where the kernel describes the GPUs, besides NVML; the second is readable only by root, if at
    # all.
    path_sysfs: str = "/sys"
    path_kmsg: str = "/dev/kmsg"

    @property
    def patience_seconds(self) -> float:
        """Age at which a sample is stale and a call is stuck."""
        return max(self.stale_seconds, 3 * self.interval_seconds)

    def to_arguments(self) -> list[str]:
        """Return the arguments that from_arguments() parses."""
        return [f"{_flag(name)}={value}" for name, value in asdict(self).items()]

    @classmethod
    def from_arguments(cls, arguments: Sequence[str] | None) -> Self:
        """Parse the worker's arguments, by default this process's; exits with 2 if one is wrong."""
        parser = argparse.ArgumentParser(prog="python -m exporter.nvml.worker")
        for field in fields(cls):
            parser.add_argument(_flag(field.name), type=type(field.default), default=field.default)
        return cls(**vars(parser.parse_args(arguments)))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
