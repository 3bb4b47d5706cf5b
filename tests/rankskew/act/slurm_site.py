"""A Slurm of two nodes, whose commands are in PATH."""

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any, Final

import pytest

FAKE: Final = Path(__file__).with_name("fake_slurm.py")


class SlurmSite:
    """Nodes n1 and n2, in a file that the commands read and write."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.file = directory / "site.json"
        for name in ("scontrol", "sinfo"):
            program = directory / name
            program.write_text(FAKE.read_text().replace("/usr/bin/env python3", sys.executable))
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        patch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("FAKE_SLURM", str(self.file))
        node = {"state": "MIXED", "reason": ""}
        nodes = {"n1": node | {"partitions": ["a", "b"]}, "n2": node | {"partitions": ["a"]}}
        self.file.write_text(json.dumps({"nodes": nodes, "asked": []}))

    def read(self) -> Any:
        return json.loads(self.file.read_text())

    def set(self, **fields: str) -> None:
        """Change n1 as an administrator does."""
        site = self.read()
        site["nodes"]["n1"].update(fields)
        self.file.write_text(json.dumps(site))
