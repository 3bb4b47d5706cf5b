"""The exporter in its image: closed, checked, and quick to end."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import bcrypt
import pytest
import yaml

from devstack.process import wait_for
from exporter.settings import Settings
from tests.deploy.image.builder import Builder
from tests.deploy.image.containers import Runtime, Spec
from tests.exporter.certificates import make_certificate
from tests.exporter.running import UnixConnection
from tests.exporter.snapshots import snapshot

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

USER: Final = 9917
NAME: Final = "exporter"
MOST_MEBIBYTES: Final = 60


@pytest.fixture(scope="module")
def settings(builder: Builder, image: Path) -> dict[str, Any]:
    """What the image says about itself."""
    described = json.loads(builder.run("buildah", "inspect", "--type=image", "rankskew:local"))
    found: dict[str, Any] = described["Docker"]["config"]
    return found


@contextmanager
def running(
    directory: Path, image: Path, settings: dict[str, Any], *flags: str
) -> Iterator[Runtime]:
    """Run the image's own command with *flags*, with what the page says is mounted."""
    sockets, state, config = (directory / name for name in ("sockets", "state", "config"))
    for each in (sockets, state):
        each.mkdir()
        os.chown(each, USER, USER)
    config.mkdir(exist_ok=True)
    spec = Spec(
        image,
        [*settings["Entrypoint"], *settings["Cmd"], *flags],
        int(settings["User"]),
        dict(each.split("=", 1) for each in settings["Env"]),
        [
            (str(sockets), "/run/rankskew", False),
            (str(state), "/var/lib/rankskew", False),
            (str(config), "/etc/rankskew", True),
        ],
        ["/run/rankskew-operator:uid=9917,mode=0700"],
        own_network=True,
    )
    runtime = Runtime(directory)
    runtime.start(NAME, spec)
    try:
        assert wait_for(lambda: check(runtime, settings).returncode == 0 or None, 20), runtime.log(
            NAME
        ).read_text()
        yield runtime
    finally:
        runtime.remove(NAME)


def check(runtime: Runtime, settings: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run the image's health check as an engine does."""
    return runtime.run(NAME, *settings["Healthcheck"]["Test"][1:])


def push(directory: Path) -> int:
    connection = UnixConnection(directory / "sockets" / "exporter.sock")
    connection.request("POST", "/v1/snapshots", snapshot().to_json())
    status = connection.getresponse().status
    connection.close()
    return status


def test_it_works_closed_and_ends_at_once(
    tmp_path: Path, image: Path, settings: dict[str, Any]
) -> None:
    """Without root, a writable root or a capability it takes pushes and orders; then it goes."""
    with running(tmp_path, image, settings) as runtime:
        status = Path(f"/proc/{runtime.state(NAME)['pid']}/status").read_text()
        assert f"Uid:\t{USER}\t{USER}" in status
        assert "CapBnd:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        assert "Read-only" in runtime.run(NAME, "touch", "/opt/rankskew/file").stderr

        assert push(tmp_path) == 200
        assert "0.1" in runtime.run(NAME, "rankskew", "--version").stdout
        released = runtime.run(NAME, "rankskew", "control", "--release-gpus")
        assert released.returncode == 0, released.stderr
        assert runtime.run(NAME, "rankskew", "control", "--resume-gpus").returncode == 0

        told = time.monotonic()
        runtime.kill(NAME, "TERM")
        assert wait_for(lambda: runtime.state(NAME)["status"] == "stopped" or None, 10, 0.02)
        assert time.monotonic() - told < 2
    assert "stopped" in runtime.log(NAME).read_text().splitlines()[-1]
    assert "Traceback" not in runtime.log(NAME).read_text()


def test_check_passes_with_tls_and_a_login(
    tmp_path: Path, image: Path, settings: dict[str, Any]
) -> None:
    """It does not matter how the web listener is protected."""
    config = tmp_path / "config"
    config.mkdir()
    certificate, key = make_certificate(config, "exporter")
    key.chmod(0o644)
    users = {"prometheus": bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()}
    tls = {"cert_file": certificate.name, "key_file": key.name}
    web = {"tls_server_config": tls, "basic_auth_users": users}
    (config / "web.yaml").write_text(yaml.safe_dump(web))
    flags = ["--web.config.file=/etc/rankskew/web.yaml"]
    with running(tmp_path, image, settings, *flags) as runtime:
        said = check(runtime, settings)

        assert (said.returncode, said.stdout) == (0, "The exporter is healthy.\n")
        assert "https://" in runtime.log(NAME).read_text()


def test_check_fails_when_the_exporter_hangs(
    tmp_path: Path, image: Path, settings: dict[str, Any]
) -> None:
    """A stopped process accepts connections; the check gives up before Docker's own time limit."""
    with running(tmp_path, image, settings) as runtime:
        runtime.kill(NAME, "STOP")
        asked = time.monotonic()
        said = check(runtime, settings)
        seconds = time.monotonic() - asked

    assert said.returncode == 1
    assert "no answer from" in said.stdout
    assert seconds < settings["Healthcheck"]["Timeout"] / 1e9


def test_check_fails_without_an_exporter(image: Path) -> None:
    """It says which socket nobody listens on, in one line."""
    said = subprocess.run(
        ["chroot", image, "python3", "-I", "-S", "/opt/rankskew/health_check.py"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (said.returncode, said.stderr) == (1, "")
    assert said.stdout.startswith(f"no answer from {Settings().operator_socket}: ")


def test_image_is_small(image: Path) -> None:
    """What it adds to its base is the exporter with its packages; nothing that installs any."""
    used = subprocess.check_output(["du", "-sm", image / "opt"], text=True)
    packages = next((image / "opt" / "rankskew").glob("lib/python*/site-packages"))

    assert int(used.split()[0]) <= MOST_MEBIBYTES
    assert not [each for each in packages.iterdir() if each.name in ("pip", "setuptools")]
    assert not (image / "src").exists()
    assert not (image / "build").exists()
