"""The exporter in its image: closed, checked, and small.

The base is made of Debian's packages, in place of one from a registry.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from devstack.process import wait_for
from tests.deploy import ROOT
from tests.deploy.machine import RELEASE
from tests.exporter.running import UnixConnection, exchange
from tests.exporter.snapshots import snapshot

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

BASE: Final = "localhost/base"
PACKAGES: Final = "python3,python3-venv,ca-certificates"
# Where packages come from, and whom to trust, on this machine.
PIP: Final = ("PIP_CERT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")
USER: Final = 9917
MOST_MEBIBYTES: Final = 60
CAPABILITIES: Final = ("bounding", "effective", "inheritable", "permitted", "ambient")
NAMESPACES: Final = ("pid", "ipc", "uts", "mount", "network")
# In compose's syntax, including the mounts that compose adds by itself.
TMPFS: Final = "/dev:mode=755", "/dev/shm:mode=1777", f"/run/rankskew-operator:uid={USER},mode=0700"


class Builder:
    """buildah, with a storage of its own in *directory*, and a base in it."""

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
        self._make_base()

    def run(self, *command: str, **environment: str) -> str:
        """Return what *command* prints; raise AssertionError with its whole output on failure."""
        done = subprocess.run(
            command, cwd=ROOT, env=self._environment | environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def _make_base(self) -> None:
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


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def image(builder: Builder) -> Iterator[Path]:
    """The root of the exporter's image, built by `make image`'s own script."""
    # docker's client may be there without an engine, as in CI; podman has another storage.
    builder.run("scripts/build_image.sh", *builder.options(), IMAGE="rankskew:local")
    container = builder.run("buildah", "from", "--pull-never", "localhost/rankskew:local")
    yield Path(builder.run("buildah", "mount", container))
    builder.run("buildah", "umount", container)
    builder.run("buildah", "rm", container)


def closed(root: Path, settings: dict[str, Any], mounts: dict[Path, str]) -> dict[str, Any]:
    """Return OCI's configuration of a container as compose.yaml closes it.

    It has a read-only root, no capability and no new privilege. *settings* are the image's,
    *mounts* a container's directory by the host's.
    """
    places: list[dict[str, Any]] = [{"destination": "/proc", "type": "proc", "source": "proc"}]
    for place, _, options in (text.partition(":") for text in TMPFS):
        mount = {"destination": place, "type": "tmpfs", "source": "tmpfs"}
        places.append(mount | {"options": ["nosuid", *options.split(",")]})
    for here, there in mounts.items():
        mount = {"destination": there, "type": "bind", "source": str(here)}
        places.append(mount | {"options": ["rbind", "rw"]})
    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(root), "readonly": True},
        "process": {
            "user": {"uid": int(settings["User"]), "gid": int(settings["User"])},
            "args": [*settings["Entrypoint"], *settings["Cmd"]],
            "env": settings["Env"],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": {each: [] for each in CAPABILITIES},
        },
        "mounts": places,
        "linux": {"namespaces": [{"type": name} for name in NAMESPACES]},
    }


class Container:
    """A container that runc runs, with all that it must remember in *directory*."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.log = directory / "log"

    def runc(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a *command* of runc about it."""
        words = ["runc", "--root", str(self._directory / "runc"), command, *arguments]
        return subprocess.run(words, capture_output=True, text=True)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run *command* in it, as its user."""
        return self.runc("exec", "exporter", *command)

    def state(self) -> dict[str, Any]:
        """Return what runc knows of it: its status, its pid."""
        found: dict[str, Any] = json.loads(self.runc("state", "exporter").stdout)
        return found

    @contextmanager
    def running(self, configuration: dict[str, Any]) -> Iterator[None]:
        """Run it in the background; it is removed in the end."""
        (self._directory / "config.json").write_text(json.dumps(configuration))
        run = ["runc", "--root", str(self._directory / "runc"), "run", "--detach"]
        run += ["--bundle", str(self._directory), "exporter"]
        with self.log.open("ab") as log:
            subprocess.run(run, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
        try:
            yield
        finally:
            self.runc("delete", "--force", "exporter")


def test_it_works_closed_says_when_it_hangs_and_ends(
    tmp_path: Path, builder: Builder, image: Path
) -> None:
    """As a plain user on a read-only root the exporter is healthy and takes pushes and orders.

    It has no capability. The image adds no package installer, only the exporter and its packages.
    """
    used = builder.run("du", "-sm", str(image / "opt"))
    packages = next((image / "opt" / "rankskew").glob("lib/python*/site-packages"))
    assert int(used.split()[0]) <= MOST_MEBIBYTES
    assert not [each for each in packages.iterdir() if each.name in ("pip", "setuptools")]
    assert not any((image / name).exists() for name in ("src", "build"))

    described = json.loads(builder.run("buildah", "inspect", "--type=image", "rankskew:local"))
    settings = described["Docker"]["config"]
    sockets, state = (tmp_path / name for name in ("sockets", "state"))
    for each in (sockets, state):
        each.mkdir()
        os.chown(each, USER, USER)
    mounts = {sockets: "/run/rankskew", state: "/var/lib/rankskew"}
    check = settings["Healthcheck"]["Test"][1:]
    container = Container(tmp_path)
    with container.running(closed(image, settings, mounts)):
        healthy = wait_for(lambda: container.run(*check).returncode == 0 or None, 20)
        assert healthy, container.log.read_text()
        status = Path(f"/proc/{container.state()['pid']}/status").read_text()
        assert f"Uid:\t{USER}\t{USER}" in status
        assert "CapBnd:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        assert "Read-only" in container.run("touch", "/opt/rankskew/file").stderr

        connection = UnixConnection(sockets / "exporter.sock")
        pushed = exchange(connection, "POST", "/v1/snapshots", snapshot().to_json())
        assert pushed[0] == 200
        released = container.run("rankskew", "control", "--release-gpus")
        assert released.returncode == 0, released.stderr
        assert container.run("rankskew", "control", "--resume-gpus").returncode == 0

        container.runc("kill", "exporter", "STOP")  # It still accepts connections.
        said = container.run(*check)
        assert (said.returncode, "no answer from" in said.stdout) == (1, True)
        container.runc("kill", "exporter", "CONT")
        container.runc("kill", "exporter", "TERM")
        assert wait_for(lambda: container.state()["status"] == "stopped" or None, 10)
        assert "stopped" in container.log.read_text().splitlines()[-1]
        assert "Traceback" not in container.log.read_text()
