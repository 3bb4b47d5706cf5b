"""Compiles a libnvidia-ml.so.1 that needs no GPU; nvmlstub.h says what it can play."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = sorted(HERE.glob("*.c"))
GCC = ["gcc", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
GCC += ["-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1"]


def build(directory: Path) -> Path:
    """Put the stub into *directory* and return the library; needs gcc.

    All tests of this checkout share one build, until the source changes.
    """
    source = "".join(path.read_text() for path in sorted(HERE.glob("*.[ch]")))
    digest = hashlib.sha256(" ".join([*GCC, source]).encode()).hexdigest()
    # Beside Python's compiled files: git ignores both.
    compiled = HERE / "__pycache__" / f"libnvidia-ml.{digest[:16]}.so"
    if not compiled.exists():
        compiled.parent.mkdir(exist_ok=True)
        mine = compiled.with_suffix(f".{os.getpid()}")
        subprocess.run([*GCC, "-o", mine, *SOURCES], check=True)
        mine.rename(compiled)  # Atomic, even if others compile it now.
    return Path(shutil.copy(compiled, directory / "libnvidia-ml.so.1"))


def environment(
    library: Path, gpus: int = 2, scenario: Path | None = None, pcie_milliseconds: int = 20
) -> dict[str, str]:
    """Return the variables that make a process load *library* as NVIDIA's."""
    variables = {
        "LD_LIBRARY_PATH": str(library.parent),
        "STUB_GPUS": str(gpus),
        "STUB_PCIE_MS": str(pcie_milliseconds),
    }
    return variables if scenario is None else {**variables, "STUB_SCENARIO": str(scenario)}
