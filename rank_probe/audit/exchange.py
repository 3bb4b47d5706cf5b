"""Ranks post their facts to the store of their launcher, rank 0 answers with the exit status."""

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from rank_probe.audit.facts import Facts, pack, unpack

POSTED: Final = "posted"
LEFT: Final = "left"
STATUS: Final = "status"
POLL_SECONDS: Final = 0.05
# As many as 16,384 ranks may retry their connection to rank 0.
RETRY_SECONDS: Final = 0.5
# Keys per request: the store holds its response in memory twice.
BATCH: Final = 256
# If rank 0 hosts the store, it waits this long for the others to read their answer.
FAREWELL_SECONDS: Final = 5.0
SHORTEST: Final = timedelta(seconds=1)


class NoAnswer(Exception):
    """The other ranks cannot be reached; one sentence."""


class Exchange:
    """This rank's connection to the others. Raises NoAnswer after *seconds*, in every call."""

    def __init__(
        self, rank: int, world_size: int, environment: Mapping[str, str], seconds: float
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._end = time.monotonic() + seconds
        self._address = f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
        # torchrun's agent serves the store; under other launchers rank 0 does, as for training.
        self._is_server = rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        if not self._is_server:
            self._wait_for_server(environment)
        from rank_probe.torch_hooks.store import PrefixStore, TCPStore

        with self._answering():
            store = TCPStore(
                environment["MASTER_ADDR"],
                int(environment["MASTER_PORT"]),
                is_master=self._is_server,
                timeout=self._left(),
                wait_for_workers=False,
            )
        attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store: Any = PrefixStore(f"rankskew_audit/{attempt}", store)

    def post(self, facts: Facts) -> None:
        """Post *facts* for rank 0."""
        with self._answering():
            self._store.set(_key(self._rank), pack(facts))
            self._store.add(POSTED, 1)

    def gather(self, seconds: float) -> tuple[list[Facts], tuple[int, ...]]:
        """Return what was posted within *seconds*, by rank, and the ranks without it."""
        give_up = time.monotonic() + seconds
        with self._answering():
            while self._count(POSTED) < self._world_size and time.monotonic() < give_up:
                time.sleep(POLL_SECONDS)
            ranks = list(range(self._world_size))
            if self._count(POSTED) < self._world_size:
                ranks = [rank for rank in ranks if self._store.check([_key(rank)])]
            posted: list[bytes] = []
            for first in range(0, len(ranks), BATCH):
                posted += self._store.multi_get([_key(r) for r in ranks[first : first + BATCH]])
        facts = [one for one in map(unpack, posted) if one is not None]
        return facts, tuple(sorted(set(range(self._world_size)) - {one.rank for one in facts}))

    def tell(self, status: int, others: int) -> None:
        """Send the exit *status* to the *others*; if we host the store, wait until they read it."""
        with self._answering():
            self._store.set(STATUS, str(status).encode())
            if not self._is_server:
                return
            give_up = min(self._end, time.monotonic() + FAREWELL_SECONDS)
            while self._count(LEFT) < others and time.monotonic() < give_up:
                time.sleep(POLL_SECONDS)

    def hear(self) -> int:
        """Wait for rank 0's exit status, and return it."""
        with self._answering():
            self._store.set_timeout(self._left())
            status = int(self._store.get(STATUS))
            self._store.add(LEFT, 1)
            return status

    def _count(self, key: str) -> int:
        return int(self._store.add(key, 0))

    def _wait_for_server(self, environment: Mapping[str, str]) -> None:
        """Wait until somebody listens. torch would retry for up to three times its timeout."""
        address = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        while True:
            try:
                with socket.create_connection(address, self._left().total_seconds()):
                    return
            except OSError as error:
                if time.monotonic() > self._end:
                    raise NoAnswer(f"nobody answers at {self._address}: {error}") from error
            time.sleep(RETRY_SECONDS)

    def _left(self) -> timedelta:
        return max(SHORTEST, timedelta(seconds=self._end - time.monotonic()))

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError) as error:  # torch's errors of stores are RuntimeErrors.
            first = str(error).partition("\n")[0].strip().rstrip(".")
            raise NoAnswer(f"the store at {self._address} does not answer: {first}") from error


def why_not(environment: Mapping[str, str]) -> str:
    """Return why ranks cannot be compared here; empty if they can."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environment.get(name):
            return f"{name} is not set, so ranks cannot reach each other: start them with torchrun"
    if not environment["MASTER_PORT"].isdecimal():
        return f"MASTER_PORT={environment['MASTER_PORT']} is not a number"
    # We report torch's errors in one sentence, so keep its C++ frames off stderr.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    try:
        import torch.distributed  # noqa: F401 # only whether it is there
    except (ImportError, OSError):
        return "torch is not installed here, and its store connects the ranks"
    return ""


def _key(rank: int) -> str:
    return f"facts/{rank}"
