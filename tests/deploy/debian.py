"""The files of a small Debian with systemd, Slurm and nothing of ours; made once and kept."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
KEPT: Final = ROOT / ".deploy"
RELEASE: Final = "bookworm"
PACKAGES: Final = (
    *("systemd", "systemd-sysv", "dbus", "libpam-systemd", "util-linux", "bsdutils"),
    *("python3", "python3-venv", "curl", "procps", "iproute2"),
    *("munge", "slurmctld", "slurmd", "slurm-client"),
)
# What they start is the matter of each test.
NOT_STARTED: Final = ("munge", "slurmctld", "slurmd")
# The user of the jobs; the same number on each machine, as in any cluster.
USER: Final = "alice"
USER_ID: Final = 2001
HOOKS: Final = (
    f"systemctl --root=$1 disable {' '.join(NOT_STARTED)}",
    "rm -f $1/etc/hostname",  # That of this machine; each one gets its own.
    f"chroot $1 useradd --create-home --shell /bin/bash --uid {USER_ID} {USER}",
)


def why_not() -> str | None:
    """Return why machines cannot be booted here; None if they can."""
    if os.geteuid() != 0:
        return "booting a machine needs root"
    programs = ("systemd-nspawn", "mmdebstrap", "ip", "nsenter")
    missing = [name for name in programs if shutil.which(name) is None]
    return f"{', '.join(missing)}: not installed (scripts/setup.sh nightly)" if missing else None


def files() -> Path:
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
