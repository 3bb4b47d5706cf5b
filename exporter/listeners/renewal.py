"""Listens anew on a Unix socket whose file, or directory, was removed while the exporter runs."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from exporter.errors import Failures, StartError
from exporter.listeners.listener import Listener
from exporter.listeners.sockets import UnixListener

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0


class Renewal:
    """Keeps *unix*, one of the sockets of *listener*, where clients look for it.

    Clients that are connected notice nothing.
    """

    def __init__(self, unix: UnixListener, listener: Listener) -> None:
        self._unix = unix
        self._listener = listener
        self._served = unix.socket
        self._is_failing = False

    async def look(self) -> None:
        """Listen anew if the file is gone; what prevents it is logged once."""
        try:
            self._unix.renew()
            after = self._unix.socket
            if after is self._served:
                return
            await self._listener.listen_instead(self._served, after)
        except (StartError, OSError) as error:
            if not self._is_failing:
                logger.warning("new clients cannot connect, and it is tried again: %s", error)
            self._is_failing = True
            return
        self._served = after
        self._is_failing = False
        logger.warning("%s was removed; the exporter listens there anew", self._unix.path)


async def renew_for_ever(renewals: Sequence[Renewal], failures: Failures) -> None:
    """Look after all *renewals* until cancelled."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        for renewal in renewals:
            with failures.caught("socket renewal"):
                await renewal.look()
