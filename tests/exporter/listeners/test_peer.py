"""The kernel identifies who is at the other end of a Unix socket, and in which container."""

import os
import socket
from pathlib import Path

import pytest

from exporter.listeners.peer import UNKNOWN, Peer, peer_of

POD = "0::/kubepods.slice/kubepods-pod0a1b2c3d_0a1b_0a1b_0a1b_0a1b2c3d4e5f.slice/cri.scope"
POD_UID = "0a1b2c3d_0a1b_0a1b_0a1b_0a1b2c3d4e5f"
ANOTHER = "kubepods-podffffffff_ffff_ffff_ffff_ffffffffffff.slice"


def ours(procfs: Path) -> Peer | None:
    """Return this process, as the other end of a socket sees it."""
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        return peer_of(one, procfs)


def with_cgroup(procfs: Path, text: str) -> Path:
    (procfs / str(os.getpid())).mkdir()
    (procfs / str(os.getpid()) / "cgroup").write_text(text)
    return procfs


def test_tcp_tells_nobody() -> None:
    """Over loopback the kernel does not show who connected."""
    with socket.socket(socket.AF_INET) as tcp:
        assert peer_of(tcp) is None


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        ("0::/user.slice/user-1000.slice/session-3.scope", ""),
        (f"{POD}\n", POD_UID),
        (f"0::/system.slice/docker-{'a1' * 32}.scope", "a1" * 32),
        ("0::/system.slice/slurmstepd.scope/job_77/step_0/user", "77"),
    ],
)
def test_peer_is_a_user_in_a_container(tmp_path: Path, cgroup: str, container: str) -> None:
    """Two sessions of one user are the same peer; pods, containers and batch jobs are not."""
    assert ours(with_cgroup(tmp_path, cgroup)) == Peer(os.geteuid(), container)


def test_name_of_an_inner_cgroup_makes_nobody_another(tmp_path: Path) -> None:
    """Root in a privileged container can name a cgroup after another pod, and is not that pod."""
    peer = ours(with_cgroup(tmp_path, f"{POD}/{ANOTHER}"))

    assert peer is not None
    assert peer.container.split() == [POD_UID, "ffffffff_ffff_ffff_ffff_ffffffffffff"]


def test_process_that_has_ended_is_not_taken_for_one_outside(tmp_path: Path) -> None:
    """Root in a container does not become the node's by handing its connection on and exiting."""
    peer = ours(tmp_path)

    assert peer == Peer(os.geteuid(), UNKNOWN)
    assert not peer.may_act_for(Peer(os.geteuid(), "a-container"))
    assert peer.may_act_for(peer)


@pytest.mark.parametrize(
    ("owner", "may"),
    [(Peer(1), True), (Peer(1, "a"), True), (Peer(2), False), (Peer(2, "a"), False), (None, False)],
)
def test_user_of_the_node_acts_for_the_same_user_in_a_container(
    owner: Peer | None, may: bool
) -> None:
    """The other way round nobody does: root in a container is not the node's."""
    assert Peer(1).may_act_for(owner) == may
    assert not Peer(1, "b").may_act_for(owner)
