"""The page's own files, each with an entity tag, so that a browser fetches them once."""

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from exporter.web.vocabulary import script, style

TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


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
