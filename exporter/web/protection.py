"""Middleware that applies the login and the headers of the web configuration."""

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from exporter.web.config import WebConfig
from exporter.web.headers import WithHeaders


class Protected:
    """Serves *app* behind the settings that *current* returns at each request."""

    def __init__(self, app: ASGIApp, current: Callable[[], WebConfig]) -> None:
        self._app = app
        self._current = current
        self._config = current()
        self._protected = protected(app, self._config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        config = self._current()
        if config is not self._config:
            # With no login remembered: each user's next request is checked again.
            self._config, self._protected = config, protected(self._app, config)
        await self._protected(scope, receive, send)


def protected(app: ASGIApp, config: WebConfig) -> ASGIApp:
    """Return *app* behind the login and headers of *config*, if it has any."""
    if config.users:
        from exporter.web.auth import BasicAuth  # Imported here: bcrypt takes 0.4 MiB.

        app = BasicAuth(app, config.users)
    return WithHeaders(app, config.headers) if config.headers else app
