"""What a child process prints on standard error, as records of our own log."""

import logging
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Final

# A longer line becomes several.
LINE_BYTES: Final = 8192
# How a driver's library may end: what follows a crash is at most as many lines as Python has
# threads and modules.
TRACEBACK: Final = "Traceback (most recent call last):"
CRASH: Final = "Fatal Python error"


def follow(output: IO[bytes], logger: logging.Logger) -> None:
    """Log the lines of *output* as warnings until it ends, from a thread; closes it then."""

    def read() -> None:
        with output:
            for message, traceback in records(_lines(output)):
                extra = {"traceback": traceback} if traceback else None
                logger.warning("%s", message, extra=extra)

    threading.Thread(target=read, name="child-log", daemon=True).start()


def records(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each of *lines* as a message; a traceback is one, with its lines beside it."""
    block: list[str] = []
    for line in lines:
        if block:
            block.append(line)
            if block[0] == TRACEBACK and line.strip() and not line.startswith(" "):
                yield line, "\n".join(block)
                block = []
        elif line == TRACEBACK or line.startswith(CRASH):
            block = [line]
        elif line.strip():
            yield line, ""
    if block:
        yield block[0], "\n".join(block)


def _lines(output: IO[bytes]) -> Iterator[str]:
    while line := output.readline(LINE_BYTES):
        yield line.decode(errors="replace").rstrip("\r\n")
