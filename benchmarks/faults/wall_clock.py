"""A wall clock that can be set for chosen processes; their monotonic clock goes on."""

import struct
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parent / "clock.c"


class WallClock:
    """The clock of processes that are started with *environment*; needs gcc."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "clock.offset"
        self.set(0.0)
        library = directory / "clock.so"
        options = ["-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-ldl"]
        subprocess.run(["gcc", str(SOURCE), *options, "-o", str(library)], check=True)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET_FILE": str(self._file)}

    def set(self, seconds: float) -> None:
        """Have it ahead by *seconds* from now on."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("<d", seconds))
