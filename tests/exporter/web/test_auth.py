"""Basic auth lets in whoever knows a password, quickly the second time, and nobody else."""

import asyncio
import base64
from collections.abc import Callable

import bcrypt
import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from exporter.web.auth import BasicAuth
from exporter.web.headers import WithHeaders

# 4 is bcrypt's least cost: the tests need a true hash, not a slow one.
USERS = {
    "prometheus": bcrypt.hashpw(b"right", bcrypt.gensalt(4)),
    "zoë": bcrypt.hashpw("pässword".encode(), bcrypt.gensalt(4)),
}


def basic(login: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(login.encode()).decode()}


def get(app: ASGIApp, headers: dict[str, str] | None = None) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            return await client.get("/", headers=headers)

    return asyncio.run(send())


@pytest.fixture
def guarded() -> BasicAuth:
    return BasicAuth(PlainTextResponse("inside"), USERS)


@pytest.mark.parametrize("login", ["prometheus:right", "zoë:pässword"])
def test_right_password_lets_in(guarded: BasicAuth, login: str) -> None:
    """A user of the file gets what the application serves."""
    assert get(guarded, basic(login)).text == "inside"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic("prometheus:wrong"),
        basic("prometheus:"),
        basic("prometheus:" + "x" * 100),
        basic("nobody:right"),
        basic("prometheus"),
        basic(":"),
        {"authorization": "Basic %%%"},
        {"authorization": "Basic /w=="},
        {"authorization": "Bearer right"},
    ],
)
def test_anything_else_is_asked_to_log_in(guarded: BasicAuth, headers: dict[str, str]) -> None:
    """A wrong, missing or garbled login gets a 401 and not a byte of the application."""
    answer = get(guarded, headers)

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic ")
    assert "inside" not in answer.text


def counting(calls: list[bytes]) -> Callable[[bytes, bytes], bool]:
    check = bcrypt.checkpw

    def checkpw(password: bytes, hashed: bytes) -> bool:
        calls.append(password)
        return check(password, hashed)

    return checkpw


def test_right_login_is_hashed_once(guarded: BasicAuth, monkeypatch: pytest.MonkeyPatch) -> None:
    """bcrypt, slow on purpose, is not paid at every scrape; a wrong login always pays it."""
    calls: list[bytes] = []
    monkeypatch.setattr(bcrypt, "checkpw", counting(calls))
    for _ in range(3):
        assert get(guarded, basic("prometheus:right")).status_code == 200
        assert get(guarded, basic("prometheus:wrong")).status_code == 401

    assert calls.count(b"right") == 1
    assert calls.count(b"wrong") == 3


def test_unknown_user_costs_as_much_as_a_wrong_password(
    guarded: BasicAuth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time an answer takes does not tell which users exist."""
    calls: list[bytes] = []
    monkeypatch.setattr(bcrypt, "checkpw", counting(calls))

    get(guarded, basic("nobody:wrong"))
    assert calls == [b"wrong"]


def test_remembered_login_cannot_be_split_otherwise(guarded: BasicAuth) -> None:
    """User and password are remembered apart: moving the border between them does not log in."""
    assert get(guarded, basic("prometheus:right")).status_code == 200

    assert get(guarded, basic("prometheu:sright")).status_code == 401


def test_headers_are_on_every_response_the_refused_ones_too(guarded: BasicAuth) -> None:
    """A security header from the file is there whatever the answer is."""
    app = WithHeaders(guarded, {"X-Content-Type-Options": "nosniff"})

    assert get(app).headers["x-content-type-options"] == "nosniff"
    assert get(app, basic("prometheus:right")).headers["x-content-type-options"] == "nosniff"


def test_guesses_from_one_address_hold_up_no_other(
    guarded: BasicAuth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty wrong logins wait in line; a right one from elsewhere does not wait behind them."""
    checked: list[bytes] = []
    monkeypatch.setattr(bcrypt, "checkpw", counting(checked))

    async def flood() -> tuple[str, int]:
        here = httpx.ASGITransport(guarded, client=("10.0.0.1", 1))
        elsewhere = httpx.ASGITransport(guarded, client=("10.0.0.2", 1))
        async with (
            httpx.AsyncClient(transport=here, base_url="http://node") as guesser,
            httpx.AsyncClient(transport=elsewhere, base_url="http://node") as scraper,
            asyncio.TaskGroup() as guesses,
        ):
            for number in range(50):
                guesses.create_task(guesser.get("/", headers=basic(f"prometheus:{number}")))
            while not checked:
                await asyncio.sleep(0)
            answer = await scraper.get("/", headers=basic("prometheus:right"))
            return answer.text, len(checked)

    answer, checked_before = asyncio.run(flood())

    assert answer == "inside"
    assert checked_before <= 5
    assert len(checked) == 51
