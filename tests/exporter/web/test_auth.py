"""Basic auth lets in whoever knows a password, quickly the second time, and nobody else."""

import asyncio
import base64

import bcrypt
import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from exporter.web.auth import BasicAuth
from exporter.web.config import WebConfig
from exporter.web.protection import Protected, WithHeaders

INSIDE = PlainTextResponse("inside")


def hashed(password: str) -> bytes:
    # 4 is bcrypt's least cost: the tests need a true hash, not a slow one.
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4))


def basic(login: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(login.encode()).decode()}


def client(app: ASGIApp, address: str = "10.0.0.1") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://node")


def get(app: ASGIApp, headers: dict[str, str] | None = None) -> httpx.Response:
    async def send() -> httpx.Response:
        async with client(app) as scraper:
            return await scraper.get("/", headers=headers)

    return asyncio.run(send())


@pytest.fixture
def guarded() -> BasicAuth:
    passwords = {"prometheus": "right", "zoë": "pässword", "long": "x" * 72}
    return BasicAuth(INSIDE, {user: hashed(each) for user, each in passwords.items()})


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The passwords that bcrypt was asked about."""
    checked: list[bytes] = []
    check = bcrypt.checkpw

    def checkpw(password: bytes, hashed: bytes) -> bool:
        checked.append(password)
        return check(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", checkpw)
    return checked


@pytest.mark.parametrize("login", ["prometheus:right", "zoë:pässword"])
def test_right_password_lets_in(guarded: BasicAuth, login: str) -> None:
    assert get(guarded, basic(login)).text == "inside"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic("prometheus:wrong"),
        basic("prometheus:"),
        basic("long:" + "x" * 73),  # bcrypt reads no more than 72 bytes.
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


def test_right_login_is_hashed_once(guarded: BasicAuth, checked: list[bytes]) -> None:
    """bcrypt, slow on purpose, is not paid at every scrape; a wrong login always pays it.

    So does an unknown user: the time an answer takes does not tell which exist.
    """
    for _ in range(3):
        assert get(guarded, basic("prometheus:right")).status_code == 200
        assert get(guarded, basic("prometheus:wrong")).status_code == 401
        assert get(guarded, basic("nobody:guess")).status_code == 401

    assert [checked.count(each) for each in (b"right", b"wrong", b"guess")] == [1, 3, 3]


def test_remembered_login_cannot_be_split_otherwise(guarded: BasicAuth) -> None:
    """User and password are remembered apart: moving the border between them does not log in."""
    assert get(guarded, basic("prometheus:right")).status_code == 200

    assert get(guarded, basic("prometheu:sright")).status_code == 401


def test_headers_are_on_every_response_the_refused_ones_too(guarded: BasicAuth) -> None:
    app = WithHeaders(guarded, {"X-Content-Type-Options": "nosniff"})

    assert get(app).headers["x-content-type-options"] == "nosniff"
    assert get(app, basic("prometheus:right")).headers["x-content-type-options"] == "nosniff"


def test_guesses_from_one_address_hold_up_no_other(
    guarded: BasicAuth, checked: list[bytes]
) -> None:
    """Fifty wrong logins wait in line; a right one from elsewhere does not wait behind them."""

    async def flood() -> None:
        async with (
            client(guarded) as guesser,
            client(guarded, "10.0.0.2") as scraper,
            asyncio.TaskGroup() as guesses,
        ):
            for number in range(50):
                guesses.create_task(guesser.get("/", headers=basic(f"prometheus:{number}")))
            while not checked:
                await asyncio.sleep(0)
            answer = await scraper.get("/", headers=basic("prometheus:right"))
            assert answer.text == "inside"
            assert len(checked) <= 5

    asyncio.run(flood())
    assert len(checked) == 51


def test_each_request_is_judged_by_the_settings_of_its_time(checked: list[bytes]) -> None:
    """Users come, change their password and go, and headers too, without a restart."""
    settings = WebConfig()
    protected = Protected(INSIDE, lambda: settings)
    assert get(protected).status_code == 200

    settings = WebConfig(users={"a": hashed("first")}, headers={"X-Frame-Options": "deny"})
    assert get(protected).status_code == 401
    for _ in range(2):  # Only a change costs bcrypt's time again.
        assert get(protected, basic("a:first")).headers["X-Frame-Options"] == "deny"
    assert checked == [b"first"]

    # The right login is remembered, so the change must forget it.
    settings = WebConfig(users={"a": hashed("second")})
    assert get(protected, basic("a:first")).status_code == 401
    assert get(protected, basic("a:second")).status_code == 200

    settings = WebConfig()
    assert get(protected).status_code == 200
