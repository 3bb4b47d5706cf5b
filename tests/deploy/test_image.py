"""The exporter in its image: closed, checked, and small."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from devstack.process import wait_for
from tests.deploy.builder import Builder
from tests.deploy.containers import Runtime, Spec
from tests.exporter.running import UnixConnection
from tests.exporter.snapshots import snapshot

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

USER: Final = 9917
NAME: Final = "exporter"
MOST_MEBIBYTES: Final = 60


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """A builder with a base."""
    made = Builder(tmp_path_factory.mktemp("image"))
    made.make_base()
    return made


@pytest.fixture(scope="module")
def image(builder: Builder) -> Iterator[Path]:
    """The root of the exporter's image, built by `make image`'s own script."""
    # docker's client may be there without an engine, as in CI; podman has another storage.
    builder.run("scripts/build_image.sh", *builder.options(), IMAGE="rankskew:local")
    with builder.mounted("localhost/rankskew:local") as root:
        yield root


def test_it_works_closed_says_when_it_hangs_and_ends(
    tmp_path: Path, builder: Builder, image: Path
) -> None:
    """Without root, a writable root or a capability it takes pushes and orders, and is healthy."""
    described = json.loads(builder.run("buildah", "inspect", "--type=image", "rankskew:local"))
    settings = described["Docker"]["config"]
    sockets, state = (tmp_path / name for name in ("sockets", "state"))
    for each in (sockets, state):
        each.mkdir()
        os.chown(each, USER, USER)
    spec = Spec(
        image,
        [*settings["Entrypoint"], *settings["Cmd"]],
        int(settings["User"]),
        settings["Env"],
        {str(sockets): "/run/rankskew", str(state): "/var/lib/rankskew"},
        ["/run/rankskew-operator:uid=9917,mode=0700"],
    )
    check = settings["Healthcheck"]["Test"][1:]
    with Runtime(tmp_path).running(NAME, spec) as runtime:
        log = runtime.log(NAME)
        assert wait_for(lambda: runtime.run(NAME, *check).returncode == 0 or None, 20), log
        status = Path(f"/proc/{runtime.state(NAME)['pid']}/status").read_text()
        assert f"Uid:\t{USER}\t{USER}" in status
        assert "CapBnd:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        assert "Read-only" in runtime.run(NAME, "touch", "/opt/rankskew/file").stderr

        assert push(sockets) == 200
        released = runtime.run(NAME, "rankskew", "control", "--release-gpus")
        assert released.returncode == 0, released.stderr
        assert runtime.run(NAME, "rankskew", "control", "--resume-gpus").returncode == 0

        runtime.kill(NAME, "STOP")  # It still accepts connections.
        said = runtime.run(NAME, *check)
        assert (said.returncode, "no answer from" in said.stdout) == (1, True)
        runtime.kill(NAME, "CONT")
        runtime.kill(NAME, "TERM")
        assert wait_for(lambda: runtime.state(NAME)["status"] == "stopped" or None, 10)
        assert "stopped" in log.read_text().splitlines()[-1]
        assert "Traceback" not in log.read_text()


def push(sockets: Path) -> int:
    connection = UnixConnection(sockets / "exporter.sock")
    connection.request("POST", "/v1/snapshots", snapshot().to_json())
    status = connection.getresponse().status
    connection.close()
    return status


def test_image_is_small(builder: Builder, image: Path) -> None:
    """What it adds to its base is the exporter with its packages; nothing that installs any."""
    used = builder.run("du", "-sm", str(image / "opt"))
    packages = next((image / "opt" / "rankskew").glob("lib/python*/site-packages"))

    assert int(used.split()[0]) <= MOST_MEBIBYTES
    assert not [each for each in packages.iterdir() if each.name in ("pip", "setuptools")]
    assert not (image / "src").exists()
    assert not (image / "build").exists()
