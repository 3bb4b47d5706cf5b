"""Runs a root as a container engine would, with runc."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

CAPABILITIES: Final = ("bounding", "effective", "inheritable", "permitted", "ambient")
NAMESPACES: Final = ("pid", "ipc", "uts", "mount")


@dataclass(frozen=True)
class Spec:
    """What to run in *root*, closed as compose.yaml asks: read-only, no capability, no new one.

    *mounts* are of a host's directory at a container's, read-only if so; *tmpfs* as compose
    writes it. Without *own_network* the caller's is used.
    """

    root: Path
    command: Sequence[str]
    user: int
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[tuple[str, str, bool]] = ()
    tmpfs: Sequence[str] = ()
    own_network: bool = False

    def configuration(self, name: str) -> dict[str, Any]:
        """Return the bundle's config.json for the host *name*, as OCI's specification has it."""
        namespaces = [*NAMESPACES, *(["network"] if self.own_network else [])]
        return {
            "ociVersion": "1.0.2",
            "hostname": name,
            "root": {"path": str(self.root), "readonly": True},
            "process": {
                "user": {"uid": self.user, "gid": self.user},
                "args": list(self.command),
                "env": [f"{name}={value}" for name, value in self.environment.items()],
                "cwd": "/",
                "noNewPrivileges": True,
                "capabilities": {each: [] for each in CAPABILITIES},
            },
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {
                    "destination": "/dev",
                    "type": "tmpfs",
                    "source": "tmpfs",
                    "options": ["mode=755"],
                },
                _tmpfs("/dev/shm"),
                *(_tmpfs(each) for each in self.tmpfs),
                *(_bind(*each) for each in self.mounts),
            ],
            "linux": {"namespaces": [{"type": name} for name in namespaces]},
        }


def _tmpfs(text: str) -> dict[str, Any]:
    place, _, options = text.partition(":")
    return {
        "destination": place,
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "nodev", *(options.split(",") if options else ["mode=1777"])],
    }


def _bind(source: str, target: str, is_read_only: bool) -> dict[str, Any]:
    options = ["rbind", "ro" if is_read_only else "rw"]
    return {"destination": target, "type": "bind", "source": source, "options": options}


class Runtime:
    """runc, with what it must remember in *directory*; each container's output is in NAME.log."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def log(self, name: str) -> Path:
        """Return where the output of *name* is."""
        return self._directory / f"{name}.log"

    def start(self, name: str, spec: Spec) -> None:
        """Start the container *name* in the background."""
        bundle = self._directory / "bundles" / name
        bundle.mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps(spec.configuration(name)))
        with self.log(name).open("ab") as log:
            command = self._runc("run", "--detach", "--bundle", str(bundle), name)
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)

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

    def remove(self, name: str) -> None:
        """Forget *name*, killing it if it runs."""
        subprocess.run(self._runc("delete", "--force", name), check=True)
        shutil.rmtree(self._directory / "bundles" / name)

    def _runc(self, *arguments: str) -> list[str]:
        return ["runc", "--root", str(self._directory / "runc"), *arguments]
