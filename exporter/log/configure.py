"""Sends everything that the exporter's process has to say through its log."""

import logging
import sys
from typing import Final

from exporter.log.formats import FORMATS

PLAIN: Final = "text"


def configure(level: str, log_format: str) -> None:
    """Log records of *level* and above to standard error, as *log_format* says.

    Unless that is text, Python's warnings become records too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATS[log_format]())
    logging.basicConfig(handlers=[handler], level=level.upper())
    # It warns of every request that is not HTTP, so anyone who can connect could fill the disk.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    if log_format != PLAIN:
        logging.captureWarnings(True)
