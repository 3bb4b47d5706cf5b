"""Which GPUs this node should have: all that it ever had, remembered across restarts."""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from exporter.errors import reason
from exporter.nvml.sample import GpuSample, NodeSample

logger = logging.getLogger(__name__)

# In the directory of --path.state, which must exist: only the operator knows which directory
# outlives a reboot.
FILE_NAME: Final = "gpus.json"
STARTS_OVER: Final = "the list of expected GPUs starts over"


class ExpectedGpus:
    """All GPUs that the driver has ever listed, by UUID, minus those known to be gone for good.

    A GPU is gone for good when another one takes its place on the PCI bus. *directory* None
    keeps them in memory only; a *number* above 0 overrides how many are expected. One thread calls
    see(), any thread the rest.
    """

    def __init__(self, directory: Path | None = None, number: int = 0) -> None:
        self._file = None if directory is None else directory / FILE_NAME
        self._number = number
        self._is_logged = False
        # UUID to PCI bus id; replaced as a whole.
        self._known = self._load()

    @property
    def number(self) -> int | None:
        """How many GPUs this node should have; None if it never had one and none was specified."""
        return self._number or len(self._known) or None

    def see(self, sample: NodeSample) -> None:
        """Expect the GPUs that *sample* lists from now on."""
        seen = {gpu.uuid: gpu.pci_bus_id for gpu in sample.gpus if gpu.uuid}
        places = {place for place in seen.values() if place}
        known = {
            uuid: place
            for uuid, place in self._known.items()
            if uuid in seen or place not in places
        }
        self._keep(known | seen)

    def missing(self, gpus: Sequence[GpuSample]) -> list[str]:
        """Return the UUIDs that are expected but not among *gpus*, in the order first seen."""
        listed = {gpu.uuid for gpu in gpus}
        missing = [uuid for uuid in self._known if uuid not in listed]
        if self._number:
            anonymous = sum(not gpu.uuid for gpu in gpus)
            return missing[: max(0, self._number - len(gpus) + anonymous)]
        return missing

    def _keep(self, known: dict[str, str]) -> None:
        if known == self._known:
            return
        self._known = known
        if self._file is None:
            return
        new = self._file.with_suffix(".new")
        try:
            with new.open("w") as file:
                json.dump({"gpus": known}, file)
                file.flush()
                os.fsync(file.fileno())  # A lost GPU is often followed by a hard reboot.
            new.replace(self._file)
        except OSError as error:
            self._log(
                f"cannot write {self._file}: {reason(error)}; after a restart a missing GPU "
                "is not noticed unless --gpus.expected is set"
            )

    def _load(self) -> dict[str, str]:
        if self._file is None:
            return {}
        try:
            return _parse(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._log(f"cannot read {self._file}: {reason(error)}; {STARTS_OVER}")
        except ValueError:
            self._log(f"{self._file} is damaged; {STARTS_OVER}")
        return {}

    def _log(self, sentence: str) -> None:
        if not self._is_logged:
            self._is_logged = True
            logger.warning(sentence)


def _parse(text: bytes) -> dict[str, str]:
    """Return the GPUs in the file; raise ValueError on anything not written by this class."""
    content = json.loads(text)
    known = content.get("gpus") if isinstance(content, dict) else None
    if not isinstance(known, dict) or not all(isinstance(place, str) for place in known.values()):
        raise ValueError("not the GPUs of a node")
    return known
