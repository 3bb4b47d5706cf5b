"""The kernel identifies who is at the other end of a Unix socket, and in which container."""

import os
import socket
from pathlib import Path

import pytest

from exporter.listeners.peer import UNKNOWN, Peer, peer_of

POD = "0::/kubepods.slice/kubepods-pod0a1b2c3d_0a1b_0a1b_0a1b_0a1b2c3d4e5f.slice/cri.scope"
POD_UID = "0a1b2c3d_0a1b_0a1b_0a1b_0a1b2c3d4e5f"
ANOTHER_UID = "ffffffff_ffff_ffff_ffff_ffffffffffff"
ME = os.geteuid()


def ours(procfs: Path) -> Peer | None:
    """Return this process, as the other end of a socket sees it."""
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        return peer_of(one, procfs)


def with_cgroup(procfs: Path, text: str) -> None:
    with_status(procfs, os.getpid(), 1, str(os.getpid()))
    (procfs / str(os.getpid()) / "cgroup").write_text(text)


def with_status(procfs: Path, pid: int, parent: int, ids: str) -> None:
    """Let *pid* be known by *ids*: on the node, in its own PID namespace and any between."""
    (procfs / str(pid)).mkdir(exist_ok=True)
    (procfs / str(pid) / "status").write_text(f"Name:\tx\nPPid:\t{parent}\nNSpid:\t{ids}\n")


def test_tcp_tells_nobody() -> None:
    with socket.socket(socket.AF_INET) as tcp:
        assert peer_of(tcp) is None


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        ("0::/user.slice/user-1000.slice/session-3.scope", ""),
        (f"{POD}\n", POD_UID),
        (f"0::/system.slice/docker-{'a1' * 32}.scope", "a1" * 32),
        ("0::/system.slice/slurmstepd.scope/job_77/step_0/user", "77"),
        # Root in a privileged container can name a cgroup after another pod, and is not that pod.
        (f"{POD}/kubepods-pod{ANOTHER_UID}.slice", f"{POD_UID} {ANOTHER_UID}"),
    ],
)
def test_peer_is_a_user_in_a_container(tmp_path: Path, cgroup: str, container: str) -> None:
    """Two sessions of one user are the same peer; pods, containers and batch jobs are not."""
    with_cgroup(tmp_path, cgroup)

    assert ours(tmp_path) == Peer(ME, container)


def test_container_that_no_cgroup_names_is_its_pid_namespace(tmp_path: Path) -> None:
    """Root of LXC, systemd-nspawn or bubblewrap is not the node's, without any privilege to see it.

    A namespace within the container is still that container.
    """
    with_cgroup(tmp_path, "0::/")
    with_status(tmp_path, os.getpid(), 800, f"{os.getpid()}\t9\t1")
    with_status(tmp_path, 800, 700, "800\t5")
    with_status(tmp_path, 700, 600, "700\t1")
    peer = ours(tmp_path)

    assert peer == Peer(ME, "namespace of process 700")
    assert not peer.may_act_for(Peer(ME, "a-container"))
    assert not peer.may_act_for(Peer(ME))


@pytest.mark.parametrize("parent", [600, 4_000])
def test_process_that_entered_a_container_is_nobody_of_the_node(
    tmp_path: Path, parent: int
) -> None:
    """Whose container it is cannot be told, but it is not the node's."""
    with_cgroup(tmp_path, "0::/")
    with_status(tmp_path, os.getpid(), parent, f"{os.getpid()}\t57")
    with_status(tmp_path, 600, 1, "600")

    assert ours(tmp_path) == Peer(ME, UNKNOWN)


def test_process_that_has_ended_is_not_taken_for_one_outside(tmp_path: Path) -> None:
    """Root in a container does not become the node's by handing its connection on and exiting."""
    peer = ours(tmp_path)

    assert peer == Peer(ME, UNKNOWN)
    assert not peer.may_act_for(Peer(ME, "a-container"))
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
