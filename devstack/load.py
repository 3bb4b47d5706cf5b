"""The load of an exporter: ranks that push without a training, and scrapes."""

import multiprocessing
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from devstack.parts import ExporterProcess
from rank_probe.report.push import Pusher
from rank_probe.wire.snapshot import Snapshot
from rank_probe.wire.stages import STAGES

RANKS = 8
STEPS_A_PUSH = 10

RANK = Snapshot(
    job_id="bench",
    peer_group="all",
    rank=0,
    world_size=RANKS,
    attempt=0,
    pid=1,
    started_timestamp_seconds=1.0,
    sequence=1,
    heartbeat_timestamp_seconds=2.0,
    steps=1000,
    stage_seconds=dict.fromkeys(STAGES, 12.345678),
    busy_seconds=100.0,
    stage="forward",
    stage_elapsed_seconds=0.1,
    last_step_timestamp_seconds=2.0,
)


class Rank:
    """A rank that steps: each push is a new snapshot."""

    def __init__(self, rank: int, ranks: int = RANKS) -> None:
        self._snapshot = replace(RANK, rank=rank, world_size=ranks)

    @property
    def steps(self) -> int:
        """How many steps it has counted."""
        return self._snapshot.steps

    def __call__(self) -> Snapshot:
        before = self._snapshot
        steps = before.steps + STEPS_A_PUSH
        self._snapshot = replace(before, sequence=before.sequence + 1, steps=steps)
        return self._snapshot


def push_for_ever(endpoint: str) -> None:
    """Act as RANKS ranks that each push once a second, as real ones do."""
    for rank in range(RANKS):
        Pusher(endpoint, Rank(rank)).start()
    signal.pause()


@contextmanager
def beside(work: Callable[..., None], *arguments: object) -> Iterator[None]:
    """Run *work* in its own process while the block runs, so that it disturbs no timing."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def pushing(exporter: ExporterProcess) -> AbstractContextManager[None]:
    """Have ranks push while the block runs."""
    return beside(push_for_ever, exporter.target)


def scrape(address: str, accept: str = "*/*", source: str = "") -> bytes:
    """Return the page at *address*, over a new connection, as Prometheus scrapes every 15 s.

    The connection comes from the address *source* if there is one.
    Parsed by hand: http.client's parsing takes a fifth of the measured time.
    """
    host, _, port = address.rpartition(":")
    source_address = (source, 0) if source else None
    with socket.create_connection((host, int(port)), 10, source_address) as connection:
        wanted = f"Host: node\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        connection.sendall(f"GET /metrics HTTP/1.1\r\n{wanted}".encode())
        answer = bytearray()
        while part := connection.recv(2**20):
            answer += part
    head, _, page = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise OSError(f"no page from {address}: {head.decode(errors='replace')}")
    return bytes(page)


def samples_on(page: bytes, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """Yield the labels and the value of each series called *name* on *page*."""
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            if sample.name == name:
                yield sample.labels, sample.value
