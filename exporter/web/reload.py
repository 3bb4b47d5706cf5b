"""Follows the web configuration file, and the certificates that it names, while they change.

They are looked at for each request and each TLS handshake, as the Prometheus exporter toolkit
does; it costs a stat() of up to four files. A change that cannot be used leaves the old settings in
place, where the toolkit would refuse all requests.
"""

import logging
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from exporter.errors import UsageError, stamp
from exporter.web.config import FLAG, WebConfig, WebConfigReading, read_web_config

logger = logging.getLogger(__name__)

Stamps = Mapping[Path, tuple[int, ...] | None]
ADDED: Final = "tls_server_config was added: restart the exporter to serve https"
REMOVED: Final = "tls_server_config was removed: restart the exporter to serve http"


class WatchedConfig:
    """The settings in the file *path*; raises UsageError if they cannot be used at the start.

    *succeeded* says whether the last reading could be used; *succeeded_at* is when one last could,
    in Unix time.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        reading, self._stamps = _read(path, [path])
        if reading.problems:
            raise UsageError(reading.problems[0])
        self._config = reading.config
        self.succeeded = True
        self.succeeded_at = clock()

    def current(self) -> WebConfig:
        """Return the newest settings that could be used; raises nothing."""
        if any(stamp(path) != before for path, before in self._stamps.items()):
            self._reload()
        return self._config

    def _reload(self) -> None:
        # An unusable file keeps its stamp, so that it is read and logged only once.
        reading, self._stamps = _read(self._path, self._stamps)
        problem = self._problem(reading)
        self.succeeded = problem is None
        if problem is not None:
            logger.error("%s; the previous settings stay in use", problem)
            return
        self._config = reading.config
        self._stamps = {path: self._stamps[path] for path in reading.files}
        self.succeeded_at = self._clock()
        logger.info("read %s again", self._path)

    def _problem(self, reading: WebConfigReading) -> str | None:
        if reading.problems:
            return reading.problems[0]
        was_tls, is_tls = self._config.tls is not None, reading.config.tls is not None
        if was_tls == is_tls:
            return None
        return f"{FLAG}: {self._path}: {ADDED if is_tls else REMOVED}"


class CurrentContext(ssl.SSLContext):
    """A server's context that performs each handshake with the context in the current settings.

    asyncio wraps each connection with the context that it was given once, for all connections.
    """

    _current: Callable[[], WebConfig]

    @classmethod
    def of(cls, current: Callable[[], WebConfig]) -> Self:
        """Return the context that follows *current*."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._current = current
        return context

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Begin a connection, as SSLContext.wrap_bio() does."""
        context = self._current().tls
        assert context is not None, "no reload turns TLS off"
        return context.wrap_bio(*arguments, **options)


def _read(path: Path, files: Iterable[Path]) -> tuple[WebConfigReading, Stamps]:
    """Return what *path* says, and the stamps that *files* and the files that it names had before.

    A file that changes while it is read is read again, since its stamp is older.
    """
    stamps = {each: stamp(each) for each in files}
    reading = read_web_config(path)
    if stamps.keys() >= set(reading.files):
        return reading, stamps
    return _read(path, {*stamps, *reading.files})
