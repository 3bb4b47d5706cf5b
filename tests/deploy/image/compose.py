"""A stand-in for `docker compose`: reads compose.yaml, starts its containers with runc.

What an image from a registry would contain comes from IMAGES, a JSON file: the root, the command
before compose's own, the user, and what to mount. All containers share the network of the caller.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from devstack.process import wait_for
from tests.deploy.image.containers import Runtime, Spec

# What is closed in every container here; a service that asks for less would be started differently.
CLOSED: Final = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
}
PATIENCE_SECONDS: Final = 60.0


class Compose:
    """The services of *file*; what they write is in *state*."""

    def __init__(self, file: Path, images: Mapping[str, Any], state: Path) -> None:
        self._file = file
        self._services: dict[str, Any] = yaml.safe_load(file.read_text())["services"]
        self._images = images
        self._state = state
        self._runtime = Runtime(state)

    def up(self, wanted: list[str]) -> None:
        """Start *wanted*, or all that need no profile, each after what it depends on."""
        names = wanted or [name for name, each in self._services.items() if "profiles" not in each]
        for name in names:
            if self._services[name]["image"] in self._images:
                self._start(name)
            else:
                print(f"{name}: no image here, not started")

    def logs(self, names: list[str]) -> None:
        """Print what *names* have printed."""
        for name in names:
            print(self._runtime.log(name).read_text())

    def execute(self, name: str, command: list[str]) -> int:
        """Run *command* in the container *name*; return its status."""
        done = self._runtime.run(name, *command)
        print(done.stdout + done.stderr, end="")
        return done.returncode

    def down(self) -> None:
        """End all containers as Docker does; say how long each took."""
        for name in self._running():
            told = time.monotonic()
            self._runtime.kill(name, "TERM")
            gone = wait_for(partial(self._has_stopped, name), 2, 0.02)
            how = f"{time.monotonic() - told:.1f} s" if gone else "killed"
            print(f"{name}: {how}")
            self._runtime.remove(name)

    def _start(self, name: str) -> None:
        if name in self._running():
            return
        service = self._services[name]
        for other, how in service.get("depends_on", {}).items():
            self._start(other)
            if how["condition"] == "service_healthy":
                self._wait(other)
        self._runtime.start(name, self._spec(service))

    def _wait(self, name: str) -> None:
        image = self._images[self._services[name]["image"]]
        test = self._services[name].get("healthcheck", image.get("healthcheck"))["test"]
        healthy = wait_for(
            lambda: self._runtime.run(name, *test[1:]).returncode == 0 or None, PATIENCE_SECONDS
        )
        if healthy is None:
            sys.exit(f"{name} is not healthy:\n{self._runtime.log(name).read_text()}")

    def _spec(self, service: Mapping[str, Any]) -> Spec:
        assert {name: service[name] for name in CLOSED} == CLOSED
        image = self._images[service["image"]]
        entrypoint = service.get("entrypoint", image["entrypoint"])
        return Spec(
            Path(image["root"]),
            [*entrypoint, *service.get("command", [])],
            image["user"],
            image["environment"] | service.get("environment", {}),
            [*image["mounts"], *(self._mount(each, image) for each in service.get("volumes", []))],
            service.get("tmpfs", []),
        )

    def _mount(self, volume: str, image: Mapping[str, Any]) -> tuple[str, str, bool]:
        source, target, *options = volume.split(":")
        if source.startswith("."):
            source = str((self._file.parent / source).resolve())
        elif not source.startswith("/"):  # A volume belongs to the image's user.
            directory = self._state / "volumes" / source
            directory.mkdir(parents=True, exist_ok=True)
            os.chown(directory, image["user"], image["user"])
            source = str(directory)
        return source, target, options == ["ro"]

    def _has_stopped(self, name: str) -> bool | None:
        return self._runtime.state(name)["status"] == "stopped" or None

    def _running(self) -> list[str]:
        return list(self._of_runtime())

    def _of_runtime(self) -> Iterator[str]:
        for name in self._services:
            if (self._state / "runc" / name).exists():
                yield name


def main() -> int:
    """Do what the command line says, as `docker` would."""
    parser = argparse.ArgumentParser(prog="docker")
    parser.add_argument("compose", choices=["compose"])
    parser.add_argument("--profile")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up")
    up.add_argument("--build", action="store_true")
    up.add_argument("--detach", action="store_true", required=True)
    up.add_argument("services", nargs="*")
    commands.add_parser("logs").add_argument("services", nargs="+")
    execute = commands.add_parser("exec")
    execute.add_argument("service")
    execute.add_argument("words", nargs=argparse.REMAINDER)
    commands.add_parser("down").add_argument("--volumes", action="store_true")
    given = parser.parse_args()

    images = json.loads(Path(os.environ["IMAGES"]).read_text())
    compose = Compose(Path("compose.yaml").resolve(), images, Path(os.environ["STATE"]))
    match given.command:
        case "up":
            compose.up(given.services)
        case "logs":
            compose.logs(given.services)
        case "exec":
            return compose.execute(given.service, given.words)
        case "down":
            compose.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
