"""The view that stays: drawn again after each answer, until Ctrl-C."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from exporter.live.wording import duration
from rankskew.top.model import FleetStatus
from rankskew.top.view import View

# What a screen needs besides jobs: the line at the top, the table's head, sentences.
OTHER_LINES: Final = 10


def show(read: Callable[[], FleetStatus], interval_seconds: float) -> None:
    """Show what *read* returns until Ctrl-C; if it fails, what was seen before."""
    fleet: FleetStatus | None = None
    console = Console()
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            live.update(frame(fleet, console.height, time.time()), refresh=True)
            time.sleep(0.0 if fleet is None else interval_seconds)
            fleet = kept(read(), fleet)


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
