"""A virtual environment with one release of torch, the frameworks that fit it, and the tests'."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FRAMEWORKS: Final = ROOT / "tests" / "requirements.txt"
TESTING: Final = (
    *("numpy", "psutil", "pytest", "pytest-timeout", "hypothesis"),
    *("hatchling>=1.26", "setuptools>=77"),
)
# Compiles the probe's modules for the environment's Python, beside their sources.
COMPILE: Final = """
import pathlib, tempfile
from hatch_build import compile_modules, place
with tempfile.TemporaryDirectory() as folder:
    for built in compile_modules(pathlib.Path.cwd(), pathlib.Path(folder)):
        place(built, pathlib.Path("rank_probe"))
"""

# The newest release of a framework that takes a torch older than this: the one of
# tests/requirements.txt does not.
OLDER: Final = (((2, 6), "transformers", "transformers<5"),)
# Builds against torch, which pip hides from a build by default.
BUILT_WITH_TORCH: Final = ("deepspeed",)


@dataclass(frozen=True, slots=True)
class Release:
    """A torch such as 2.8, the last patch of it, on a Python such as 3.12; '' is this one."""

    torch: str
    python: str = ""

    @classmethod
    def of(cls, text: str) -> "Release":
        """Read 2.8 or 2.8/3.12. Raises ValueError."""
        match = re.fullmatch(r"(\d+\.\d+)(?:/(\d+\.\d+))?", text)
        if match is None:
            raise ValueError(f"{text!r} is not a torch such as 2.8, or 2.8/3.12 with its Python")
        return cls(match[1], match[2] or "")

    @property
    def folder(self) -> str:
        """The name of its environment."""
        return "-".join(filter(None, (self.torch, self.python)))

    def interpreter(self) -> str:
        """Return the Python to make it with. Raises LookupError if there is none."""
        if not self.python:
            return sys.executable
        found = shutil.which(f"python{self.python}")
        if found is None:
            raise LookupError(f"there is no python{self.python} on PATH")
        return found

    def packages(self) -> Iterator[str]:
        """Yield the frameworks as pip is asked for them."""
        version = tuple(map(int, self.torch.split(".")))
        older = {name: wanted for before, name, wanted in OLDER if version < before}
        for line in FRAMEWORKS.read_text().splitlines():
            if line and not line.startswith("#"):
                yield older.get(re.split(r"[\[=<>]", line)[0], line)


def python_of(release: Release, folder: Path) -> Path:
    """Return the Python of *release*'s environment in *folder*, made if it is not there or is old.

    A framework that cannot be installed beside this torch is left out, and the run says so.
    Raises CalledProcessError if torch itself cannot be installed.
    """
    python = folder / release.folder / "bin" / "python"
    stamp = folder / release.folder / "installed"
    wanted = "\n".join((*TESTING, *release.packages()))
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([release.interpreter(), "-m", "venv", str(python.parents[1])], check=True)
        torch = f"torch=={release.torch}.*"
        _install(python, torch, *TESTING)
        for package in release.packages():
            own = ["--no-build-isolation"] if package.startswith(BUILT_WITH_TORCH) else []
            try:
                _install(python, torch, package, *own)
            except subprocess.CalledProcessError:
                print(f"torch {release.torch} runs without {package}", file=sys.stderr)
        stamp.write_text(wanted)
    subprocess.run([str(python), "-c", COMPILE], cwd=ROOT, check=True)
    return python


def remove(release: Release, folder: Path) -> None:
    """Free the disk: an environment takes up to 8 GB."""
    shutil.rmtree(folder / release.folder)


def _install(python: Path, *arguments: str) -> None:
    quietly = ("install", "--quiet", "--disable-pip-version-check")
    subprocess.run([str(python), "-m", "pip", *quietly, *arguments], check=True)
