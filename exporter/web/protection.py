"""Middleware that applies the login and the headers of the web configuration."""

from collections.abc import Callable, Mapping

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from exporter.web.config import WebConfig


class Protected:
    """Serves *app* behind the settings that *current* returns at each request."""

    def __init__(self, app: ASGIApp, current: Callable[[], WebConfig]) -> None:
        self._app = app
        self._current = current
        self._config = current()
        self._protected = _protected(app, self._config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        config = self._current()
        if config is not self._config:
            # With no login remembered: each user's next request is checked again.
            self._config, self._protected = config, _protected(self._app, config)
        await self._protected(scope, receive, send)


class WithHeaders:
    """Adds *headers* to every response of *app*."""

    def __init__(self, app: ASGIApp, headers: Mapping[str, str]) -> None:
        self._app = app
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _protected(app: ASGIApp, config: WebConfig) -> ASGIApp:
    """Return *app* behind the login and headers of *config*, if it has any."""
    if config.users:
        from exporter.web.auth import BasicAuth  # Imported here: bcrypt takes 0.4 MiB.

        app = BasicAuth(app, config.users)
    return WithHeaders(app, config.headers) if config.headers else app
