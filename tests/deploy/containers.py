"""Runs a root as a container engine would, with runc."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

CAPABILITIES: Final = ("bounding", "effective", "inheritable", "permitted", "ambient")
NAMESPACES: Final = ("pid", "ipc", "uts", "mount", "network")


@dataclass(frozen=True)
class Spec:
    """What to run in *root*, closed as compose.yaml asks: read-only, no capability, no new one.

    *environment* is of NAME=VALUE, *mounts* of a container's directory by the host's, and *tmpfs*
    as compose writes it.
    """

    root: Path
    command: Sequence[str]
    user: int
    environment: Sequence[str]
    mounts: Mapping[str, str]
    tmpfs: Sequence[str]

    def configuration(self) -> dict[str, Any]:
        """Return the bundle's config.json, as OCI's specification has it."""
        places = [_tmpfs(each) for each in ("/dev:mode=755", "/dev/shm:mode=1777", *self.tmpfs)]
        places += [
            {"destination": there, "type": "bind", "source": here, "options": ["rbind", "rw"]}
            for here, there in self.mounts.items()
        ]
        return {
            "ociVersion": "1.0.2",
            "root": {"path": str(self.root), "readonly": True},
            "process": {
                "user": {"uid": self.user, "gid": self.user},
                "args": list(self.command),
                "env": list(self.environment),
                "cwd": "/",
                "noNewPrivileges": True,
                "capabilities": {each: [] for each in CAPABILITIES},
            },
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, *places],
            "linux": {"namespaces": [{"type": name} for name in NAMESPACES]},
        }


def _tmpfs(text: str) -> dict[str, Any]:
    place, _, options = text.partition(":")
    mount = {"destination": place, "type": "tmpfs", "source": "tmpfs"}
    return mount | {"options": ["nosuid", *options.split(",")]}


class Runtime:
    """runc, with what it must remember in *directory*; each container's output is in NAME.log."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def running(self, name: str, spec: Spec) -> Iterator[Self]:
        """Run the container *name* in the background; it is removed in the end."""
        bundle = self._directory / "bundles" / name
        bundle.mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps(spec.configuration()))
        with self.log(name).open("ab") as log:
            command = self._runc("run", "--detach", "--bundle", str(bundle), name)
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
        try:
            yield self
        finally:
            subprocess.run(self._runc("delete", "--force", name), check=True)

    def log(self, name: str) -> Path:
        """Return where the output of *name* is."""
        return self._directory / f"{name}.log"

    def run(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run *command* in the container *name*, as its user."""
        return subprocess.run(
            self._runc("exec", name, *command), capture_output=True, text=True, check=False
        )

    def kill(self, name: str, signal: str) -> None:
        """Send *signal* to the first process of *name*."""
        subprocess.run(self._runc("kill", name, signal), check=False)

    def state(self, name: str) -> dict[str, Any]:
        """Return what runc knows of *name*: its status, its pid."""
        found: dict[str, Any] = json.loads(subprocess.check_output(self._runc("state", name)))
        return found

    def _runc(self, *arguments: str) -> list[str]:
        return ["runc", "--root", str(self._directory / "runc"), *arguments]
