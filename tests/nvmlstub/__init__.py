"""Compiles a libnvidia-ml.so.1 that needs no GPU; nvmlstub.h says what it can play."""

import subprocess
from pathlib import Path

SOURCES = sorted(Path(__file__).parent.glob("*.c"))


def build(directory: Path) -> Path:
    """Compile the stub into *directory* and return the library; needs gcc."""
    library = directory / "libnvidia-ml.so.1"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    shared = ["-shared", "-fPIC", "-fvisibility=hidden", f"-Wl,-soname,{library.name}"]
    subprocess.run(
        ["gcc", "-D_GNU_SOURCE", "-O1", *warnings, *shared, "-o", library, *SOURCES], check=True
    )
    return library


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
