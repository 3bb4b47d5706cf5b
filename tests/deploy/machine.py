"""Machines of our own for the tests: each boots systemd in an nspawn container; needs root.

A machine's changes go to a layer of its own above the system's files. So a test can run a page's
commands as root and leave nothing behind. Machines see each other and this one on a bridge.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Self

import psutil

from devstack.process import StackProcess, wait_for
from tests.deploy import ROOT

# A small Debian with systemd, Slurm and nothing of ours; made once and kept.
KEPT: Final = ROOT / ".deploy"
RELEASE: Final = "bookworm"
PACKAGES: Final = (
    *("systemd", "systemd-sysv", "dbus", "libpam-systemd", "util-linux", "bsdutils"),
    *("python3", "python3-venv", "curl", "procps", "iproute2"),
    *("munge", "slurmctld", "slurmd", "slurm-client"),
)
# Each test starts those that it needs.
NOT_STARTED: Final = ("munge", "slurmctld", "slurmd")
# The user of the jobs; the same number on each machine, as in any cluster.
USER: Final = "alice"
USER_ID: Final = 2001
HOOKS: Final = (
    f"systemctl --root=$1 disable {' '.join(NOT_STARTED)}",
    "rm -f $1/etc/hostname",  # That of this machine; each one gets its own.
    f"chroot $1 useradd --create-home --shell /bin/bash --uid {USER_ID} {USER}",
)
CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_GROUP: Final = "rankskew-tests"
# nspawn puts the machine into the cgroup that it is started in, and two cannot share one.
START: Final = """
for hierarchy in "$@"; do
    [ "$hierarchy" != -- ] || break
    mkdir -p "$hierarchy" && echo $$ > "$hierarchy/cgroup.procs"; shift
done
shift; exec "$@"
"""
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def why_not() -> str | None:
    """Return why machines cannot be booted here; None if they can."""
    if os.geteuid() != 0:
        return "booting a machine needs root"
    programs = ("systemd-nspawn", "mmdebstrap", "ip", "nsenter")
    missing = [name for name in programs if shutil.which(name) is None]
    return f"{', '.join(missing)}: not installed (scripts/setup.sh nightly)" if missing else None


def debian() -> Path:
    """Return the root directory of the system; the first call takes a minute and the network."""
    wanted = hashlib.sha256(repr((RELEASE, PACKAGES, HOOKS)).encode()).hexdigest()
    root, stamp = KEPT / "debian", KEPT / "debian.stamp"
    if stamp.exists() and stamp.read_text() == wanted:
        return root
    shutil.rmtree(root, ignore_errors=True)
    KEPT.mkdir(exist_ok=True)
    no_recommends = 'APT::Install-Recommends "false"'
    chosen = ["--variant=apt", f"--aptopt={no_recommends}", f"--include={','.join(PACKAGES)}"]
    chosen += [f"--customize-hook={hook}" for hook in HOOKS]
    subprocess.run(["mmdebstrap", "--quiet", *chosen, RELEASE, root], check=True)
    stamp.write_text(wanted)
    return root


class CommandFailed(AssertionError):
    """A command in a machine failed; the message has what it printed."""


class Network:
    """A bridge of this machine with *prefix*.1; machines take the addresses after it."""

    def __init__(self, prefix: str = "10.213.77") -> None:
        self.prefix, self.bridge = prefix, "rankskew-tests"

    @property
    def address(self) -> str:
        """Return the address of this machine on it."""
        return f"{self.prefix}.1"

    def __enter__(self) -> Self:
        # What was killed left its own, and the addresses of both would be the same.
        left = ["ip", "link", "delete", self.bridge]
        subprocess.run(left, stderr=subprocess.DEVNULL, check=False)
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        return self

    def __exit__(self, *_: object) -> None:
        _ip("link", "delete", self.bridge)


class Machine(StackProcess):
    """A booted machine *name*; *layers* are directories with its files, the uppermost first.

    *shared* are directories that it sees at the same place, read-only but for *writable*.
    """

    grace_seconds = 20.0

    def __init__(
        self,
        directory: Path,
        name: str,
        layers: Sequence[Path],
        network: Network,
        number: int,
        shared: Sequence[Path] = (),
        writable: Sequence[Path] = (),
    ) -> None:
        self.host, self.address = name, f"{network.prefix}.{10 + number}"
        self.changes = directory / name / "changes"
        self.root = directory / name / "root"
        self._layers, self._network = layers, network
        self._groups = _cgroups(name)
        # The Python of .venv, for the trainings; it may not be the system's.
        places = {ROOT, (ROOT / ".venv").resolve().parent, *shared, Path(sys.base_prefix)}
        places.discard(Path("/usr"))
        binds = [f"--bind-ro={place}" for place in places]
        binds += [f"--bind={place}" for place in writable]
        groups = [str(group) for group in self._groups]
        nspawn = ["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit"]
        nspawn += [f"--directory={self.root}", f"--machine={name}", f"--hostname={name}"]
        nspawn += ["--console=pipe", "--capability=CAP_SYSLOG"]  # for what see-all.conf grants
        nspawn += [f"--network-bridge={network.bridge}", "--resolv-conf=off", *binds]
        command = ["bash", "-c", START, "start", *groups, "--", *nspawn]
        super().__init__(f"machine {name}", command, directory / f"{name}.log")

    def start(self) -> None:
        """Boot it, and wait until systemd has started what is enabled."""
        work = self.changes.parent / "work"
        for place in (self.changes, self.root, work):
            place.mkdir(parents=True, exist_ok=True)
        lower = ":".join(str(layer) for layer in self._layers)
        layers = f"lowerdir={lower},upperdir={self.changes},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "rankskew", "-o", layers, self.root], check=True)
        super().start()
        if wait_for(self._boots, 30) is None:
            raise self.failure("does not boot")
        up = f"ip addr add {self.address}/24 dev host0; ip link set host0 up; ip link set lo up"
        self.run(up)

    def stop(self) -> None:
        """Shut it down, and unmount its files, which stay in *changes*."""
        super().stop()
        subprocess.run(["umount", "--lazy", self.root], check=False)
        for group in self._groups:
            for each in sorted(group.glob("**/"), reverse=True):
                wait_for(partial(_killed, each / "cgroup.procs"), 30)
                each.rmdir()

    def run(
        self,
        script: str,
        user: str = "root",
        directory: str | Path = "/",
        environment: Mapping[str, str] | None = None,
        seconds: float = 120,
    ) -> str:
        """Run *script* in a shell of *user*; return its output, or raise CommandFailed."""
        done = subprocess.run(
            self.command(["bash", "-e", "-o", "pipefail", "-c", script], user, directory),
            env={"PATH": PATH, "LANG": "C.UTF-8", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
        if done.returncode != 0:
            said = f"{self.host}: {script}\nexits with {done.returncode}:\n{done.stdout}"
            raise CommandFailed(said)
        return done.stdout

    def command(
        self, command: Sequence[str], user: str = "root", directory: str | Path = "/"
    ) -> list[str]:
        """Return the command line that runs *command* in the machine from here."""
        enter = ["nsenter", f"--target={self._init().pid}", "--all"]
        change = ["env", f"--chdir={directory}"]
        who = [] if user == "root" else ["runuser", "-u", user, "--"]
        return [*enter, *who, *change, *command]

    def _init(self) -> psutil.Process:
        [init] = [each for each in psutil.Process(self.pid).children() if each.name() == "systemd"]
        return init

    def _boots(self) -> bool | None:
        self.check_alive()
        try:
            said = self.run("systemctl is-system-running || true").strip()
        except (CommandFailed, ValueError):
            return None
        return True if said in ("running", "degraded") else None


def _killed(processes: Path) -> bool | None:
    """Kill the *processes* that a cgroup lists; return True if there are none."""
    left = processes.read_text().split()
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    return None if left else True


def _cgroups(name: str) -> list[Path]:
    hierarchies = [CGROUPS / each for each in ("systemd", "unified")]
    if not hierarchies[0].is_dir():
        return []  # Version 2 only: nspawn delegates a cgroup of its own.
    return [each / OWN_GROUP / name for each in hierarchies if each.is_dir()]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
