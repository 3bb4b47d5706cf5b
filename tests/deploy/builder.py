"""Builds images as anyone would, on a base of Debian's packages instead of one from a registry."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.deploy.debian import RELEASE, ROOT

BASE: Final = "localhost/base"
PACKAGES: Final = "python3,python3-venv,ca-certificates"
# Where packages come from, and whom to trust, on this machine.
PIP: Final = ("PIP_CERT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")


class Builder:
    """buildah, with a storage of its own in *directory*."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        storage = directory / "storage.conf"
        storage.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{directory / "graph"}"\n'
            f'runroot = "{directory / "run"}"\n'
        )
        self._environment = os.environ | {
            "CONTAINERS_STORAGE_CONF": str(storage),
            "BUILDAH_ISOLATION": "chroot",  # No runtime inside of another container.
        }

    def run(self, *command: str, **environment: str) -> str:
        """Return what *command* prints; raises AssertionError with all it said if it fails."""
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self._environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def make_base(self) -> None:
        """Store a Debian with Python, of the release that the Dockerfile's own base is made of."""
        archive = str(self._directory / "base.tar")
        make = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}"]
        self.run(*make, RELEASE, archive)
        container = self.run("buildah", "from", "scratch")
        self.run("buildah", "add", "--quiet", container, archive, "/")
        self.run("buildah", "commit", "--quiet", "--rm", container, BASE)
        Path(archive).unlink()

    def options(self) -> list[str]:
        """Return what a build needs on this machine only."""
        settings = "".join(
            f"{name.removeprefix('PIP_').lower().replace('_', '-')} = {os.environ[name]}\n"
            for name in PIP
            if name in os.environ
        )
        pip = self._directory / "pip.conf"
        pip.write_text(f"[global]\n{settings}")
        places = {"/etc/ssl/certs": "/etc/ssl/certs", str(pip): "/etc/pip.conf"}
        links = os.environ.get("PIP_FIND_LINKS", "")
        if links.startswith("/"):
            places[links] = links
        volumes = [f"--volume={here}:{there}:ro" for here, there in places.items()]
        return [*volumes, f"--build-arg=BASE={BASE}", "--pull-never", "--layers=false"]

    @contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """Yield the root of a new container of *image*."""
        container = self.run("buildah", "from", "--pull-never", image)
        try:
            yield Path(self.run("buildah", "mount", container))
        finally:
            self.run("buildah", "umount", container)
            self.run("buildah", "rm", container)
