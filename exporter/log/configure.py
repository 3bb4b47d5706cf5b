"""Sends everything that the exporter's process has to say through its log."""

import logging
import sys
import threading
from types import TracebackType
from typing import Final

from exporter.log.formats import FORMATS

logger = logging.getLogger(__name__)

PLAIN: Final = "text"


def configure(level: str, log_format: str) -> None:
    """Log records of *level* and above to standard error, as *log_format* says.

    Unless that is text, warnings and uncaught exceptions of Python become records too, so that
    every line can be parsed.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATS[log_format]())
    logging.basicConfig(handlers=[handler], level=level.upper())
    # It warns of every request that is not HTTP, so anyone who can connect could fill the disk.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    if log_format != PLAIN:
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread


def _log_uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    logger.critical("the exporter ends: %r", error, exc_info=(kind, error, traceback))


def _log_uncaught_in_thread(uncaught: threading.ExceptHookArgs) -> None:
    name = uncaught.thread.name if uncaught.thread else "unknown"
    traceback = (uncaught.exc_type, uncaught.exc_value, uncaught.exc_traceback)
    logger.error(
        "thread %s ends: %r",
        name,
        uncaught.exc_value,
        exc_info=traceback,  # type: ignore[arg-type] # None only while Python itself ends
        extra={"thread_name": name},
    )
