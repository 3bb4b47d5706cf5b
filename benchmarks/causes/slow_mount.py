"""A file system in user space on which each read takes a while: one file, read only.

    python -m benchmarks.causes.slow_mount FOLDER --seconds 0.05

It speaks the kernel's FUSE protocol itself, so it needs root and /dev/fuse, and no library. It
writes a line when it is mounted, and ends when it is unmounted.
"""

import argparse
import ctypes
import errno
import os
import stat
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Final

FILE: Final = b"samples"
FILE_BYTES: Final = 1 << 20
ROOT_ID, FILE_ID = 1, 2
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE = 1, 2, 3, 14, 15, 17, 18
FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR = 25, 26, 27, 28, 29
INTERRUPT, BATCH_FORGET = 36, 42
NO_ANSWER: Final = (FORGET, BATCH_FORGET, INTERRUPT)
# struct fuse_in_header: length, opcode, unique, node ID, and what we do not need.
HEADER: Final = struct.Struct("<IIQQIIII")
ANSWER: Final = struct.Struct("<IiQ")
# struct fuse_attr: inode, size, blocks, three times, their nanoseconds, mode, links, user, group,
# device, block size, flags.
ATTRIBUTES: Final = struct.Struct("<6Q10I")
# Past the page cache: each read comes to us.
DIRECT_IO: Final = 1
REQUEST_BYTES: Final = 1 << 17


def attributes(node: int) -> bytes:
    """Return the attributes of a node."""
    is_file = node == FILE_ID
    mode = stat.S_IFREG | 0o444 if is_file else stat.S_IFDIR | 0o555
    size = FILE_BYTES if is_file else 0
    return ATTRIBUTES.pack(node, size, size // 512, *[0] * 3, *[0] * 3, mode, 1, *[0] * 3, 4096, 0)


def answer(opcode: int, node: int, body: bytes, seconds: float) -> bytes | int:
    """Return the body of the reply to a request of the kernel, or an error number."""
    if opcode == INIT:
        major, minor = struct.unpack_from("<II", body)
        return struct.pack("<4I2H11I", major, min(minor, 31), 0, 0, 16, 12, 1 << 16, *[0] * 10)
    if opcode == LOOKUP:
        found = body.rstrip(b"\0") == FILE
        times = struct.pack("<4Q2I", FILE_ID, 0, 60, 60, 0, 0)
        return times + attributes(FILE_ID) if found else errno.ENOENT
    if opcode == GETATTR:
        return struct.pack("<QII", 60, 0, 0) + attributes(node)
    if opcode in (OPEN, OPENDIR):
        return struct.pack("<QII", 0, DIRECT_IO, 0)
    if opcode == READ:
        time.sleep(seconds)
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(max(0, min(size, FILE_BYTES - offset)))
    if opcode == STATFS:
        return bytes(80)
    return b"" if opcode in (RELEASE, RELEASEDIR, FLUSH, READDIR) else errno.ENOSYS


def serve(device: int, seconds: float) -> None:
    """Answer requests until the file system is unmounted, each in a thread of its own."""

    def reply(request: bytes) -> None:
        _, opcode, unique, node, *_ = HEADER.unpack_from(request)
        if opcode in NO_ANSWER:
            return
        said = answer(opcode, node, request[HEADER.size :], seconds)
        body, error = (b"", -said) if isinstance(said, int) else (said, 0)
        os.write(device, ANSWER.pack(ANSWER.size + len(body), error, unique) + body)

    while True:
        try:
            request = os.read(device, REQUEST_BYTES + 4096)
        except OSError as ended:
            if ended.errno == errno.ENODEV:  # Unmounted.
                return
            continue  # A request was interrupted before it was read.
        threading.Thread(target=reply, args=(request,), daemon=True).start()


def main() -> None:
    """Mount, serve, and end when it is unmounted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=0.05)
    options = parser.parse_args()
    device = os.open("/dev/fuse", os.O_RDWR)
    settings = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"slow", os.fsencode(options.folder), b"fuse", 0, settings) != 0:
        sys.exit(f"cannot be mounted: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    serve(device, options.seconds)


if __name__ == "__main__":
    main()
