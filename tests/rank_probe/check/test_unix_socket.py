"""The socket of the exporter is there and may be written to, or one sentence says why not."""

import os
import socket
from pathlib import Path

import pytest

from rank_probe.check.problem import CannotReport
from rank_probe.check.unix_socket import look_at, require_writable, socket_path


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


def test_absent_socket_is_told_from_an_absent_directory(tmp_path: Path) -> None:
    """In a container the directory is not mounted; on a node no exporter runs. Both may pass."""
    with pytest.raises(
        CannotReport, match=r"there is no socket .*/e\.sock: start one"
    ) as socket_gone:
        look_at(f"{tmp_path}/e.sock")
    with pytest.raises(CannotReport, match=r"there is no directory .*/absent: start one"):
        look_at(f"{tmp_path}/absent/e.sock")

    assert socket_gone.value.may_pass


def test_what_is_no_socket_is_said(tmp_path: Path) -> None:
    """A file, or a directory that a mount created in its place, is not waited for."""
    with pytest.raises(CannotReport, match="is not a socket: set RANKSKEW_EXPORTER") as found:
        look_at(str(tmp_path))

    assert not found.value.may_pass


def test_path_through_a_file_is_one_sentence(tmp_path: Path) -> None:
    """Whatever the system says of the path is in the sentence."""
    (tmp_path / "file").write_text("")

    with pytest.raises(CannotReport, match=r"cannot look at the socket .*: Not a directory; in a"):
        look_at(f"{tmp_path}/file/e.sock")


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [("unix:/a/b", "/a/b"), ("unix:///a/b", "/a/b"), ("unix:a", None), ("http://x:1", None)],
)
def test_only_a_socket_has_a_path(endpoint: str, path: str | None) -> None:
    """Over TCP there is no file to look at."""
    assert socket_path(endpoint) == path
