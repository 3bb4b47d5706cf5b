"""The page's own files, each with an entity tag, so that a browser fetches them once."""

import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from exporter.vocabulary import words
from rank_probe.wire.stages import STAGES, SYNC

WAIT: Final = STAGES[SYNC]
TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


def script() -> str:
    """Return the names and words as constants of a module."""
    constants: Mapping[str, Any] = {
        "STATES": {
            name: {"word": state.word, "colour": state.colour}
            for name, state in words.STATES.items()
        },
        "STAGES": list(words.STAGES),
        "MARKS": {name: kind.mark for name, kind in words.LATE_KINDS.items() if kind.mark},
        "CAUSES": {
            name: {"short": cause.short, "details": dict(cause.details)}
            for name, cause in words.CAUSES.items()
        },
    }
    return "".join(
        f"export const {name} = {json.dumps(said, ensure_ascii=False)};\n"
        for name, said in constants.items()
    )


def style() -> str:
    """Return the colour of each stage; live.css draws the wait, in stripes of its own."""
    return "".join(
        f":root {{ --{name}: {stage.colour}; }}\n"
        f".{name} {{ background: var(--{name}); }} path.{name} {{ fill: var(--{name}); }}\n"
        for name, stage in words.STAGES.items()
        if name != WAIT
    )


def page_files() -> Mapping[str, bytes]:
    """Return the files of exporter/live/static, and what is made from the vocabulary, by name."""
    directory = files("exporter") / "live" / "static"
    there = {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.name.rpartition(".")[2] in TYPES
    }
    made = {"vocabulary.js": script().encode(), "vocabulary.css": style().encode()}
    return there | made


class StaticFiles:
    """The page's files, read and made once; nothing else is ever served."""

    def __init__(self) -> None:
        self._files = page_files()

    def answer(self, name: str, request: Request) -> Response:
        """Return file *name*, 304 if the browser has it, or 404."""
        content = self._files.get(name)
        if content is None:
            return PlainTextResponse("The exporter has no such file.\n", 404)
        return tagged(content, TYPES[name.rpartition(".")[2]], request)


def tagged(content: bytes, media_type: str, request: Request) -> Response:
    """Return *content*, or 304 if *request* names its entity tag."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    # no-cache: kept, and asked about each time, so that a new exporter's page is never a mixture.
    headers = {"ETag": tag, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)
