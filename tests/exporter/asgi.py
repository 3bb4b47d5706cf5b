"""Asks an ASGI application as its listener would."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

from exporter.listeners.peer import Peer


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode()

    @property
    def content(self) -> Any:
        """Return what the body says as JSON."""
        return json.loads(self.body)


def ask(
    app: ASGIApp, method: str, path: str, *parts: bytes, peer: Peer | None = None, **headers: str
) -> Answer | None:
    """Return the answer, None without one; the body comes in *parts*.

    Without *parts* the client disconnects. Header names are written with _ for -.
    """
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ],
        "state": {"peer": peer},
    }
    coming: list[Message] = [
        {"type": "http.request", "body": part, "more_body": number < len(parts)}
        for number, part in enumerate(parts, 1)
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return coming.pop(0) if coming else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async def answer() -> None:
        await app(scope, receive, send)

    asyncio.run(answer())
    if not sent:
        return None
    start, *bodies = sent
    return Answer(
        start["status"],
        b"".join(body["body"] for body in bodies),
        {name.decode(): value.decode() for name, value in start["headers"]},
    )
