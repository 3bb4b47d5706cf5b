"""The guards around the web application follow the settings."""

import asyncio

import bcrypt
import httpx
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from exporter.web.config import WebConfig
from exporter.web.protection import Protected


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("metrics")(scope, receive, send)


def ask(protected: ASGIApp, login: tuple[str, str] | None = None) -> httpx.Response:
    """Return the answer to a request with *login*."""

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(protected)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            return await client.get("/metrics", auth=login)

    return asyncio.run(get())


def hashed(password: bytes) -> bytes:
    return bcrypt.hashpw(password, bcrypt.gensalt(4))


def test_each_request_is_judged_by_the_settings_of_its_time() -> None:
    """Users come, change their password and go, and headers too, without a restart."""
    settings = WebConfig()
    protected = Protected(app, lambda: settings)
    assert ask(protected).status_code == 200

    settings = WebConfig(users={"a": hashed(b"first")}, headers={"X-Frame-Options": "deny"})
    assert ask(protected).status_code == 401
    assert ask(protected, ("a", "first")).headers["X-Frame-Options"] == "deny"

    # The right login is remembered, so the change must forget it.
    settings = WebConfig(users={"a": hashed(b"second")})
    assert ask(protected, ("a", "first")).status_code == 401
    assert ask(protected, ("a", "second")).status_code == 200

    settings = WebConfig()
    assert ask(protected).status_code == 200


def test_settings_that_stay_keep_the_remembered_logins() -> None:
    """Only a change costs bcrypt's time again."""
    settings = WebConfig(users={"a": hashed(b"right")})
    protected = Protected(app, lambda: settings)
    assert ask(protected, ("a", "right")).status_code == 200
    before = protected._protected
    assert ask(protected, ("a", "right")).status_code == 200
    assert protected._protected is before
