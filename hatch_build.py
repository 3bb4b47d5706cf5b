"""Builds the probe's extension modules, where there is a compiler; else the wheel is pure.

It is pure in any case with RANKSKEW_COMPILE=0, and for a Python without the global interpreter
lock, on which the modules rely: Python would turn it on again for them.
"""

import os
import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension

MODULES = {"_fold": ["_fold.c"], "_tape": ["_tape.c", "_device.c"]}


class CustomBuildHook(BuildHookInterface):
    """Compile them; an editable install gets them beside their sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add them to the wheel, which is then for this platform and Python only."""
        if self.target_name != "wheel":
            return
        self._directory = tempfile.mkdtemp()
        is_free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
        if os.environ.get("RANKSKEW_COMPILE") == "0" or is_free_threaded:
            return
        built = compile_modules(Path(self.root), Path(self._directory))
        if len(built) < len(MODULES):
            self.app.display_warning("no C compiler: the probe works, and costs a little more")
            return
        if version == "editable":
            for each in built:
                place(each, Path(self.root) / "rank_probe")
            return
        build_data["force_include"] |= {str(each): f"rank_probe/{each.name}" for each in built}
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the build left."""
        if self.target_name == "wheel":
            shutil.rmtree(self._directory, ignore_errors=True)


def place(built: Path, directory: Path) -> None:
    """Copy *built* into *directory*, as a new file: a process may have the old one mapped."""
    (directory / built.name).unlink(missing_ok=True)
    shutil.copy2(built, directory / built.name)


def compile_modules(root: Path, directory: Path) -> list[Path]:
    """Compile the modules into *directory*; return the files of those for which that works."""
    extensions = [
        Extension(
            f"rank_probe.{name}",
            [str(root / "rank_probe" / each) for each in sources],
            # The same bytes wherever the sources lie; debug information is two thirds of them.
            extra_compile_args=["-g0", f"-ffile-prefix-map={root}=."],
            optional=True,  # A failure to compile is a warning.
        )
        for name, sources in MODULES.items()
    ]
    command = Distribution({"name": "rankskew", "ext_modules": extensions}).get_command_obj(
        "build_ext"
    )
    command.build_lib = str(directory)
    command.build_temp = str(directory / "temporary")
    command.ensure_finalized()
    command.run()
    return sorted((directory / "rank_probe").glob("*.so"))
