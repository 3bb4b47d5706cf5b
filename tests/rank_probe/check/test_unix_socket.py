"""The socket of the exporter is there and may be written to, or one sentence says why not."""

import os
import socket
from pathlib import Path

import pytest

from rank_probe.check.problem import CannotReport
from rank_probe.check.unix_socket import look_at, require_writable


@pytest.fixture
def bound(tmp_path: Path) -> Path:
    """A socket that nobody listens on."""
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    path.chmod(0o660)
    return path


def test_socket_is_shown_with_its_permissions(bound: Path) -> None:
    """Mode and owner are what `ls -l` shows."""
    found = look_at(str(bound))

    assert (found.path, found.mode, found.writable) == (str(bound), "0660", True)
    require_writable(found)


def test_permission_denied_names_user_mode_and_owner(
    bound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence has what an administrator needs to see, and both remedies."""
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)
    found = look_at(str(bound))

    with pytest.raises(
        CannotReport, match=r"user 4000000 may not write to .* \(mode 0660, owner \w+"
    ):
        require_writable(found)


@pytest.mark.parametrize(
    ("path", "sentence", "may_pass"),
    [
        ("e.sock", r"there is no socket .*/e\.sock: start one", True),
        # In a container the directory is not mounted.
        ("absent/e.sock", r"there is no directory .*/absent: start one", True),
        # A directory that a mount created in its place is not waited for.
        ("", "is not a socket: set RANKSKEW_EXPORTER", False),
        ("file/e.sock", "cannot look at the socket .*: Not a directory; in a", False),
    ],
)
def test_what_is_no_socket_is_said(
    path: str, sentence: str, may_pass: bool, tmp_path: Path
) -> None:
    """Nothing there, or something else: one sentence, whatever the system says of the path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotReport, match=sentence) as found:
        look_at(str(tmp_path / path))

    assert found.value.may_pass == may_pass
