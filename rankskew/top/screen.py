"""The view that stays: drawn again when something changes, until Ctrl-C."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from exporter.live.wording import duration
from rankskew.top.model import FleetStatus
from rankskew.top.view import View

# How soon a new size of the window and a new view show.
TICK_SECONDS: Final = 0.2
# What a screen needs besides jobs: the line at the top, the table's head, sentences.
OTHER_LINES: Final = 10


def show(read: Callable[[], FleetStatus], interval_seconds: float) -> None:
    """Show what *read* returns until Ctrl-C or SIGTERM; if it fails, what was seen before."""
    fleet: FleetStatus | None = None

    def watch() -> None:
        nonlocal fleet
        while True:
            fleet = kept(read(), fleet)
            time.sleep(interval_seconds)

    # A daemon: a server that does not answer must not delay the end.
    reader = threading.Thread(target=watch, name="read", daemon=True)
    console = Console()
    with (
        _told_to_end() as ending,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        reader.start()
        drawn = None
        while not ending.wait(TICK_SECONDS):
            if not reader.is_alive():
                raise RuntimeError("the thread that reads has ended")  # Never go on with old jobs.
            seen = fleet, console.size, round(time.time())
            if seen != drawn:
                live.update(frame(fleet, console.height, time.time()), refresh=True)
                drawn = seen


def kept(new: FleetStatus, old: FleetStatus | None) -> FleetStatus:
    """Return *new*, with the jobs of *old* and their time if nothing could be read."""
    if new.jobs or not new.troubles or old is None or not old.jobs:
        return new
    return replace(old, troubles=new.troubles)


def frame(fleet: FleetStatus | None, height: int, now: float) -> Group:
    """Return a screen full: a line on the source, the troubles, the view."""
    if fleet is None:
        return Group(Text("rankskew top · asking …", "bright_black"))
    age = 0.0 if fleet.timestamp_seconds is None else max(0.0, now - fleet.timestamp_seconds)
    seen = f" · seen {duration(age)} ago" if age >= 10 else ""
    head = Text("rankskew top", "bold").append(f" · {fleet.source}{seen}", "not bold")
    head.no_wrap, head.overflow = True, "ellipsis"
    troubles = [Text(f"{trouble} Trying again.", "dark_orange") for trouble in fleet.troubles]
    most = max(3, height - OTHER_LINES - len(troubles))
    return Group(head, *troubles, Text(), View(fleet, most))


@contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C and SIGTERM set, so that the terminal is left as it was.

    An exception could be raised anywhere, even in a destructor, where Python ignores it.
    """
    ending = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        ending.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
