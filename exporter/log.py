"""The exporter's log on standard error: text, or one JSON object or logfmt record a line."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final

# What each record has anyway; all else was given as `extra`, and becomes a field.
USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
OURS: Final = frozenset(("time", "level", "message", "logger"))
BARE: Final = re.compile(r"[^\s\"=\\\x00-\x1f\x7f]+")
PLAIN: Final = "text"


class Json(logging.Formatter):
    """One JSON object: time (RFC 3339, UTC), level, message, logger, and the record's own fields.

    A traceback is one more field.
    """

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(fields(self, record), default=str, ensure_ascii=False)


class Logfmt(logging.Formatter):
    """The same fields as name=value, quoted where they need it."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_quoted(value)}" for name, value in fields(self, record).items())


# Of --log.format.
FORMATS: Final = {
    "text": lambda: logging.Formatter("%(asctime)s %(levelname)s %(message)s"),
    "logfmt": Logfmt,
    "json": Json,
}


def fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    """Return what *record* says, in the order to be shown."""
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    found: dict[str, Any] = {
        "time": time.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "message": record.getMessage(),
        "logger": record.name,
    }
    own = vars(record).items()
    found |= {name: value for name, value in own if name not in USUAL | OURS}
    if record.exc_info:
        found["traceback"] = formatter.formatException(record.exc_info)
    return found


def _quoted(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)


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
