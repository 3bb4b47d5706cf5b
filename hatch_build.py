"""Builds the probe's extension module, where there is a compiler; without it the wheel is pure."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension

NAME = "rank_probe._tape"
SOURCE = "rank_probe/_tape.c"


class CustomBuildHook(BuildHookInterface):
    """Compile the tape; an editable install gets it beside its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the module to the wheel, which is then for this platform and Python only."""
        if self.target_name != "wheel":
            return
        self._directory = tempfile.mkdtemp()
        built = compile_tape(Path(self.root), Path(self._directory))
        if built is None:
            self.app.display_warning("no C compiler: the probe works, and costs a little more")
            return
        if version == "editable":
            shutil.copy2(built, Path(self.root) / "rank_probe" / built.name)
            return
        build_data["force_include"][str(built)] = f"rank_probe/{built.name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the build left."""
        if self.target_name == "wheel":
            shutil.rmtree(self._directory, ignore_errors=True)


def compile_tape(root: Path, directory: Path) -> Path | None:
    """Compile the module into *directory*; return its file, None if that fails."""
    # Optional: a failure to compile is a warning.
    extension = Extension(NAME, [str(root / SOURCE)], optional=True)
    command = Distribution({"name": "rankskew", "ext_modules": [extension]}).get_command_obj(
        "build_ext"
    )
    command.build_lib = str(directory)
    command.build_temp = str(directory / "temporary")
    command.ensure_finalized()
    command.run()
    return next((directory / "rank_probe").glob("_tape*.so"), None)
