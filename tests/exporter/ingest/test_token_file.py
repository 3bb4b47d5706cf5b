"""The token of the TCP listener is read at the start and on change, and never revealed."""

import logging
import os
from pathlib import Path

import pytest

from exporter.errors import UsageError
from exporter.ingest.token_file import TokenFile

FLAG = "--ingest.token-file"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("header", "is_right"),
    [
        ("Bearer s3cret", True),
        ("bearer  s3cret ", True),
        ("", False),
        ("Bearer", False),
        ("Bearer ", False),
        ("Bearer s3cre", False),
        ("Bearer s3crets", False),
        ("Bearer é", False),
        ("Basic s3cret", False),
        ("s3cret", False),
    ],
)
def test_only_the_right_token_is_let_in(path: Path, header: str, is_right: bool) -> None:
    """A missing, wrong, cut or differently wrapped token is refused."""
    assert TokenFile(path, FLAG).is_shown_in(header) is is_right


@pytest.mark.parametrize("replace", [True, False])
def test_changed_file_counts_at_the_next_request(path: Path, replace: bool) -> None:
    """After a rotation, by a new file or in place, the new token is right and the old is not."""
    token = TokenFile(path, FLAG)
    if replace:
        (path.parent / "new").write_text("other1")
        os.replace(path.parent / "new", path)
    else:
        path.write_text("longer-token")

    assert token.is_shown_in(f"Bearer {path.read_text()}")
    assert not token.is_shown_in("Bearer s3cret")


@pytest.mark.parametrize("broken", [None, b"", b"two words", b"\xff", b"x" * 5_000])
def test_half_made_rotation_locks_nobody_out(
    path: Path, caplog: pytest.LogCaptureFixture, broken: bytes | None
) -> None:
    """While the file is missing or unusable the token before stays good, and that is said once."""
    token = TokenFile(path, FLAG)
    path.unlink()
    if broken is not None:
        path.write_bytes(broken)
    assert token.is_shown_in("Bearer s3cret")
    assert token.is_shown_in("Bearer s3cret")
    assert len(caplog.records) == 1
    path.write_text("next")
    assert token.is_shown_in("Bearer next")

    assert "the previous token stays valid" in caplog.text
    assert "two words" not in caplog.text


@pytest.mark.parametrize("content", [None, b"", b"two words", b"two\nlines", b"\xff", b"x" * 5_000])
def test_file_without_a_token_ends_the_start(path: Path, content: bytes | None) -> None:
    """An exporter that was asked for a token does not start without one."""
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    complaint = "No such file or directory" if content is None else "must hold one token"
    with pytest.raises(UsageError, match=rf"^{FLAG}.* {complaint}") as refusal:
        TokenFile(path, FLAG)

    assert "words" not in str(refusal.value)


def test_pipe_in_place_of_the_token_holds_nothing_up(path: Path) -> None:
    """Neither the start, nor a request after the file has become one."""
    token = TokenFile(path, FLAG)
    path.unlink()
    os.mkfifo(path)

    assert token.is_shown_in("Bearer s3cret")
    with pytest.raises(UsageError, match="it is not a regular file"):
        TokenFile(path, FLAG)


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o640, 0), (0o660, 1), (0o604, 1)])
def test_token_that_others_can_read_is_warned_of(
    path: Path, caplog: pytest.LogCaptureFixture, mode: int, warnings: int
) -> None:
    """Only a group of trainers may read it; the exporter starts anyway."""
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        TokenFile(path, FLAG)

    assert caplog.text.count("chmod 0640 it") == warnings
