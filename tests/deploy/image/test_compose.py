"""The page about compose, typed in as it stands, until a planted straggler is paged."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from devstack.parts import ALERTMANAGER, PROMETHEUS
from devstack.process import find_program
from tests.deploy.image.builder import ROOT, Builder
from tests.deploy.pages import FENCE

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

COMPOSE: Final = ROOT / "deploy" / "compose"
TEN_MINUTES: Final = 600
# A reader waits a minute or two; a test asks until the pager has printed it.
EXPECT: Final = """
set -e
mount -t tmpfs tmpfs /run
ip link set lo up
expect() {
  local word=$1; shift
  for _ in $(seq 360); do
    if "$@" > "$STATE/said" && grep -q -- "$word" "$STATE/said"; then break; fi
    sleep 0.5
  done
  echo "== $(date +%s.%N)"; cat "$STATE/said"
}
set -x
"""
NAMES: Final = "127.0.0.1 localhost exporter prometheus alertmanager pager grafana demo\n"


@pytest.fixture(scope="module")
def demo_image(builder: Builder) -> Iterator[Path]:
    """The root of the demo's image."""
    file = "--file=deploy/compose/demo.Dockerfile"
    # pip.conf says where this machine's torch comes from.
    options = [*builder.options(), "--build-arg=TORCH_INDEX=file:///nowhere"]
    builder.run("buildah", "build", file, *options, "--tag=rankskew-demo:local", ".")
    with builder.mounted("localhost/rankskew-demo:local") as root:
        yield root


def built(builder: Builder, name: str, root: Path, hosts: Path) -> dict[str, Any]:
    """Return what an engine knows of the image *name*, whose content is at *root*."""
    found = json.loads(builder.run("buildah", "inspect", "--type=image", name))["Docker"]["config"]
    return {
        "root": str(root),
        "entrypoint": found.get("Entrypoint") or [],
        "user": int(found["User"]),
        "environment": dict(each.split("=", 1) for each in found["Env"]),
        "healthcheck": {"test": found.get("Healthcheck", {}).get("Test")},
        "mounts": [(str(hosts), "/etc/hosts", True)],
    }


def of_debian(directory: Path, names: tuple[str, ...], hosts: Path) -> dict[str, Any]:
    """Return an image of this machine's own program, which runs as nobody as the official does."""
    program = find_program(names)
    assert program is not None
    root = directory / names[0]
    root.mkdir()
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    return {
        "root": str(root),
        "entrypoint": [program],
        "user": 65534,
        "environment": {"PATH": "/usr/bin:/bin"},
        "mounts": [("/usr", "/usr", True), (str(hosts), "/etc/hosts", True)],
    }


def script(page: str) -> str:
    """Return the page's commands; the one that looks for the page is repeated until it is there."""
    lines = "".join(FENCE.findall(page))
    looks = "docker compose logs pager\n"
    assert lines.count(looks) == 1
    return EXPECT + lines.replace(looks, f"expect PAGE {looks}")


def test_page_works_as_it_is_written(
    tmp_path: Path, builder: Builder, image: Path, demo_image: Path
) -> None:
    """Ten minutes after the first command at the latest, the right rank's page is printed."""
    hosts = tmp_path / "hosts"
    hosts.write_text(NAMES)
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    images = {
        "rankskew:local": built(builder, "rankskew:local", image, hosts),
        "rankskew-demo:local": built(builder, "rankskew-demo:local", demo_image, hosts),
        services["prometheus"]["image"]: of_debian(tmp_path, PROMETHEUS, hosts),
        services["alertmanager"]["image"]: of_debian(tmp_path, ALERTMANAGER, hosts),
    }
    (tmp_path / "images.json").write_text(json.dumps(images))
    programs, state = tmp_path / "programs", tmp_path / "state"
    programs.mkdir()
    state.mkdir()
    stand_ins = {"sudo": '"$@"', "docker": f'{sys.executable} -m tests.deploy.image.compose "$@"'}
    for name, does in stand_ins.items():
        (programs / name).write_text(f"#!/bin/sh\nexec {does}\n")
        (programs / name).chmod(0o755)

    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "IMAGES": str(tmp_path / "images.json"),
        "STATE": str(state),
    }
    # Its own processes, mounts and network: nothing outlives it, and every port is free.
    inside = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    began = time.time()
    done = subprocess.run(
        [*inside, "bash", "-c", script((COMPOSE / "README.md").read_text())],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TEN_MINUTES,
        check=False,
    )
    said = done.stdout
    print(said)

    assert done.returncode == 0, said
    assert "PAGE: RankskewStraggler" in said, said
    assert "Rank 2" in said
    assert "data" in said
    [paged] = re.findall(r"^== (\S+)$", said, re.MULTILINE)
    print(f"page after {float(paged) - began:.0f} s")
