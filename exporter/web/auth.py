"""Middleware that requires basic auth, if the web configuration has users."""

import asyncio
import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping
from typing import Final
from weakref import WeakValueDictionary

import bcrypt
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# Checked when the user is unknown, so that response times do not reveal which names exist.
NOBODY: Final = bcrypt.hashpw(secrets.token_bytes(16), bcrypt.gensalt(10))
CACHED_LOGINS: Final = 100


class BasicAuth:
    """Requires a login as one of *users* (name to bcrypt hash) for *app*; answers 401 otherwise.

    bcrypt is slow on purpose, so valid logins are cached, as a keyed hash, and only one login is
    checked at a time, off the event loop. Waiting client addresses take turns, so many guesses
    from one address do not delay logins from others.
    """

    def __init__(self, app: ASGIApp, users: Mapping[str, bytes]) -> None:
        self._app = app
        self._users = users
        self._cache_key = secrets.token_bytes(32)
        self._right_logins: set[bytes] = set()
        self._one_at_a_time = asyncio.Lock()
        self._one_of_each_address: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        login = _login(Headers(scope=scope).get("authorization", ""))
        address, _ = scope.get("client") or ("", 0)
        if login is not None and await self._is_right(*login, address):
            await self._app(scope, receive, send)
            return
        refusal = PlainTextResponse(
            "Log in with a user of basic_auth_users.\n",
            401,
            {"WWW-Authenticate": 'Basic realm="rankskew", charset="UTF-8"'},
        )
        await refusal(scope, receive, send)

    async def _is_right(self, user: str, password: bytes, address: str) -> bool:
        name = user.encode()
        text = b"%d:%b%b" % (len(name), name, password)
        digest = hashlib.blake2b(text, key=self._cache_key).digest()
        if digest in self._right_logins:
            return True
        turn = self._one_of_each_address.setdefault(address, asyncio.Lock())
        async with turn, self._one_at_a_time:
            hashed = self._users.get(user, NOBODY)
            # bcrypt reads 72 bytes; newer releases raise on more, so no such password can be right.
            is_right = await asyncio.to_thread(bcrypt.checkpw, password[:72], hashed)
        if is_right and user in self._users and len(password) <= 72:
            if len(self._right_logins) >= CACHED_LOGINS:
                self._right_logins.clear()
            self._right_logins.add(digest)
            return True
        return False


def _login(authorization: str) -> tuple[str, bytes] | None:
    """Return user and password of a Basic Authorization header, None for anything else."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
        return (user.decode(), password) if colon else None
    except (binascii.Error, ValueError):
        return None
