"""Carries out requests as another user, one line of JSON at a time.

Its arguments are WHO UID DIR. WHO is `user`, a user of the node; `jailed`, a user whose root
directory is DIR; `fake_root`, root of a user namespace that this user made; or `container`, root of
a container without a user namespace, with the capabilities that Docker leaves it. The last two have
PID and mount namespaces of their own, where DIR/run is read-only, and DIR/operator and DIR/etc are
hidden.

The user may not be able to read the interpreter's files, so all imports precede giving up root.
"""

import ctypes
import fcntl
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from rank_probe.report.endpoint import ask

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
MS_RDONLY, MS_NOSUID_NODEV_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2 | 4 | 8, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
PR_SET_DUMPABLE = 4
# chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, net_raw,
# sys_chroot, mknod, audit_write, setfcap
DOCKERS_CAPABILITIES = 0xA80425FB
libc = ctypes.CDLL(None, use_errno=True)


def call(done: int) -> None:
    """Raise OSError if a call of libc failed."""
    if done != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def become_user(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def become_root_of_a_user_namespace(uid: int) -> None:
    call(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))  # Else /proc/self is root's.
    call(libc.unshare(CLONE_NEWUSER))
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def enter_container(directory: str) -> None:
    """Continue in a child in new PID and mount namespaces; end with it."""
    call(libc.unshare(CLONE_NEWNS | CLONE_NEWPID))
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status))
    run = os.path.join(directory, "run").encode()
    call(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    call(libc.mount(run, run, None, MS_BIND, None))
    kept = os.statvfs(run).f_flag & MS_NOSUID_NODEV_NOEXEC
    call(libc.mount(None, run, None, MS_BIND | MS_REMOUNT | MS_RDONLY | kept, None))
    for name in ("operator", "etc"):
        hidden = os.path.join(directory, name).encode()
        call(libc.mount(b"none", hidden, b"tmpfs", 0, None))


def keep_dockers_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    low = DOCKERS_CAPABILITIES
    call(libc.capset(header, (ctypes.c_uint32 * 6)(low, low, 0, 0, 0, 0)))


def post(endpoint: str, path: str, body: Any) -> tuple[int, Any]:
    """Post *body* to the exporter at *endpoint*."""
    reply = ask(endpoint, "POST", path, json.dumps(body).encode(), timeout_seconds=10)
    return reply.status, json.loads(reply.body)


def read(path: str) -> str:
    with open(path) as file:
        return file.read()


def replace_socket(path: str) -> str:
    """Replace the socket at *path* with one of our own."""
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as mine:
        mine.bind(path)
    return "replaced"


def lock(directory: str) -> str:
    """Lock a directory for as long as this process runs."""
    fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_EX)
    return "locked"


ACTIONS: dict[str, Callable[..., Any]] = {
    "whoami": lambda: os.geteuid(),
    "post": post,
    "read": read,
    "replace_socket": replace_socket,
    "pid": os.getpid,
    "lock": lock,
}


def main() -> None:
    who, uid, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    "x".encode("idna")  # http.client's codec is imported only when it is needed.
    if who == "jailed":
        os.chroot(directory)
    if who != "container":
        become_user(uid)
    if who == "fake_root":
        become_root_of_a_user_namespace(uid)
    if who in ("fake_root", "container"):
        enter_container(directory)
    if who == "container":
        keep_dockers_capabilities()
    for line in sys.stdin:
        action, *arguments = json.loads(line)
        try:
            said = ACTIONS[action](*arguments)
        except OSError as error:
            said = f"{type(error).__name__}: {error.strerror}"
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
