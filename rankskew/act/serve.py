"""The process: takes what the receiver gets, and looks now and then."""

import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from exporter.ingest.token_file import TokenFile
from rankskew.act.actor import Actor
from rankskew.act.receiver import Receiver

# How often what is watched and held is looked at.
LOOK_SECONDS: Final = 60.0
# Between two looks, however many webhooks come.
REST_SECONDS: Final = 5.0
# Webhooks that wait; each has at most some thousand alerts.
MOST_WAITING: Final = 100


def serve(actor: Actor, listening: socket.socket, token: TokenFile) -> None:
    """Serve until SIGTERM or SIGINT; raises StartError if what is done cannot be written down."""
    waiting: SimpleQueue[Sequence[str] | None] = SimpleQueue()

    def take(instances: Sequence[str]) -> bool:
        if waiting.qsize() >= MOST_WAITING:
            return False
        waiting.put(instances)
        return True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: waiting.put(None))
    with Receiver(listening, token, take) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        _work(actor, waiting)
        receiver.shutdown()


def _work(actor: Actor, waiting: SimpleQueue[Sequence[str] | None]) -> None:
    """Look at what is *waiting*, and after each LOOK_SECONDS, until there is a None."""
    looked = due = time.monotonic()
    while True:
        with suppress(Empty):
            instances = waiting.get(timeout=max(0.0, due - time.monotonic()))
            if instances is None:
                return
            actor.claim(instances, time.time())
            due = min(due, looked + REST_SECONDS)
        if time.monotonic() >= due:
            actor.look(time.time())
            looked = time.monotonic()
            due = looked + LOOK_SECONDS
