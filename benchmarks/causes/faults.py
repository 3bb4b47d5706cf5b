"""What makes a rank late from outside: a process beside it, a quota, a slow disk, link or mount.

Everything is undone at the end. All but the process need root.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import psutil

from benchmarks.causes import slow_mount as slow_mount_server
from benchmarks.causes.causes_job import BLOCK_BYTES, SAMPLES_FILE

CGROUP: Final = "rankskew-causes"
# Share of a CPU. The rank needs 0.2.
QUOTA: Final = 0.14
# They leave the rank a fifth of its CPU. Its peers share the other CPU and wait too, but less.
HOGS: Final = 4
PERIOD_MICROSECONDS: Final = 100_000
# Less than the rank wants to read, which is one block in each step.
DISK_BYTES_PER_SECOND: Final = 6 * BLOCK_BYTES
SAMPLES_BYTES: Final = 32 * BLOCK_BYTES
# What the rank fetches in each step; the link takes about 50 ms for it.
FETCHED_BYTES: Final = 1 << 18
LINK_RATE: Final = "40mbit"
NAMESPACE: Final = "rankskew-causes"
VETH, PEER = "rsk-causes", "rsk-causes-in"
# Reserved for tests of networks (RFC 2544).
HERE, THERE = "198.18.77.1", "198.18.77.2"
PORT: Final = 8000
SERVER: Final = f"""
import http.server, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "{FETCHED_BYTES}")
        self.end_headers()
        self.wfile.write(bytes({FETCHED_BYTES}))
    def log_message(self, *arguments): pass
http.server.ThreadingHTTPServer(("{THERE}", {PORT}), Handler).serve_forever()
"""


def run(*command: str) -> str:
    """Run *command*; return what it printed."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def beside(pid: int) -> Iterator[None]:
    """Share one CPU between the process *pid* and HOGS that never sleep; its peers get the rest."""
    own, *others = sorted(os.sched_getaffinity(0))
    for rank in psutil.Process(psutil.Process(pid).ppid()).children():
        pin(rank, {own} if rank.pid == pid else set(others))
    with busy([{own}] * HOGS):
        yield


def pin(process: psutil.Process, cpus: set[int]) -> None:
    """Let all threads of *process* run on these CPUs only."""
    for thread in process.threads():
        os.sched_setaffinity(thread.id, cpus)


@contextmanager
def quota(pid: int) -> Iterator[None]:
    """Put the process *pid* into a cgroup that may use QUOTA of a CPU."""
    microseconds = round(QUOTA * PERIOD_MICROSECONDS)
    with cgroup("cpu", pid) as (folder, version):
        if version == 2:
            (folder / "cpu.max").write_text(f"{microseconds} {PERIOD_MICROSECONDS}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (folder / "cpu.cfs_quota_us").write_text(str(microseconds))
        yield


@contextmanager
def slow_disk(pid: int, device: str) -> Iterator[None]:
    """Let the process *pid* read at most DISK_BYTES_PER_SECOND from the block *device*."""
    with cgroup("io", pid) as (folder, version):
        if version == 2:
            (folder / "io.max").write_text(f"{device} rbps={DISK_BYTES_PER_SECOND}")
        else:
            limit = folder / "blkio.throttle.read_bps_device"
            limit.write_text(f"{device} {DISK_BYTES_PER_SECOND}")
        yield


@contextmanager
def cgroup(controller: str, pid: int) -> Iterator[tuple[Path, int]]:
    """Move the process *pid* into a new cgroup; yields its folder and the version of cgroups."""
    root = Path("/sys/fs/cgroup")
    version = 2 if (root / "cgroup.controllers").exists() else 1
    parent = root if version == 2 else root / {"cpu": "cpu", "io": "blkio"}[controller]
    if version == 2:
        (root / "cgroup.subtree_control").write_text(f"+{controller}")
    folder = parent / f"{CGROUP}-{pid}"
    folder.mkdir()
    try:
        (folder / "cgroup.procs").write_text(str(pid))
        yield folder, version
    finally:
        for each in (folder / "cgroup.procs").read_text().split():
            (parent / "cgroup.procs").write_text(each)
        _remove(folder)


def _remove(folder: Path) -> None:
    for _ in range(50):
        try:
            folder.rmdir()
        except OSError:  # Its last process is still leaving.
            time.sleep(0.1)
        else:
            return


@contextmanager
def disk(folder: Path) -> Iterator[str]:
    """Mount a file as a disk and put samples on it for the job; yields MAJOR:MINOR."""
    image, mount = folder / "disk.img", folder / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(2 * SAMPLES_BYTES)
    run("mkfs.ext4", "-q", str(image))
    device = run("losetup", "--find", "--show", str(image))
    try:
        run("mount", device, str(mount))
        samples = mount / SAMPLES_FILE
        samples.write_bytes(os.urandom(SAMPLES_BYTES))
        (folder / SAMPLES_FILE).symlink_to(samples)
        run("sync")
        number = os.stat(device).st_rdev
        yield f"{os.major(number)}:{os.minor(number)}"
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=False, capture_output=True)
        run("losetup", "--detach", device)


@contextmanager
def slow_server() -> Iterator[str]:
    """Serve samples at the end of a link of LINK_RATE; yields their URL."""
    inside = ("ip", "netns", "exec", NAMESPACE)
    run("ip", "netns", "add", NAMESPACE)
    try:
        run("ip", "link", "add", VETH, "type", "veth", "peer", "name", PEER, "netns", NAMESPACE)
        run("ip", "address", "add", f"{HERE}/30", "dev", VETH)
        run("ip", "link", "set", VETH, "up")
        run(*inside, "ip", "address", "add", f"{THERE}/30", "dev", PEER)
        run(*inside, "ip", "link", "set", PEER, "up")
        limit = f"tc qdisc add dev {PEER} root tbf rate {LINK_RATE} burst 32kb latency 100ms"
        run(*inside, *limit.split())
        server = subprocess.Popen([*inside, sys.executable, "-c", SERVER])
        try:
            yield f"http://{THERE}:{PORT}/"
        finally:
            server.kill()
            server.wait()
    finally:
        run("ip", "netns", "delete", NAMESPACE)


@contextmanager
def slow_mount(folder: Path, seconds: float) -> Iterator[None]:
    """Put the job's samples on a file system on which a read takes *seconds*."""
    mount = folder / "mount"
    mount.mkdir()
    command = [
        sys.executable,
        "-m",
        "benchmarks.causes.slow_mount",
        str(mount),
        f"--seconds={seconds}",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        if not server.stdout.readline():
            raise OSError("the slow file system could not be mounted")
        (folder / SAMPLES_FILE).symlink_to(mount / slow_mount_server.FILE.decode())
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=False, capture_output=True)
        server.kill()
        server.communicate()


def busy_cpus() -> AbstractContextManager[None]:
    """Keep each CPU busy with a process of its own."""
    return busy([{cpu} for cpu in sorted(os.sched_getaffinity(0))])


@contextmanager
def busy(places: Sequence[set[int]]) -> Iterator[None]:
    """Run one process that never sleeps on each of these sets of CPUs."""
    hogs = []
    try:
        for cpus in places:
            command = [sys.executable, "-c", "while True: pass"]
            # Linux divides a CPU among sessions: in ours, a hog would slow the other ranks too.
            hogs.append(subprocess.Popen(command, start_new_session=True))
            os.sched_setaffinity(hogs[-1].pid, cpus)
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def missing(cause: str) -> str | None:
    """Return why *cause* cannot be planted here, None if it can."""
    needs: dict[str, Callable[[], bool]] = {
        "hog": lambda: len(os.sched_getaffinity(0)) > 1,
        "quota": lambda: os.access("/sys/fs/cgroup", os.W_OK),
        "disk": lambda: os.geteuid() == 0 and shutil.which("losetup") is not None,
        "network": lambda: os.geteuid() == 0 and shutil.which("tc") is not None,
        "slow_mount": lambda: os.geteuid() == 0 and os.access("/dev/fuse", os.W_OK),
    }
    is_there = cause not in needs or needs[cause]()
    return None if is_there else "it takes two CPUs, root, losetup, tc and /dev/fuse"
