"""The unit under a real systemd: each command of its page, and what it promises of the service."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.process import answers, wait_for
from tests.deploy.machine import CommandFailed, Machine, Network
from tests.deploy.pages import blocks

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

PAGE = "deploy/systemd/README.md"
SOCKET = "/run/rankskew/exporter.sock"
CHECK = "/opt/rankskew/bin/rank-probe check"
SERVICE = "rankskew-exporter"


@pytest.fixture(scope="module")
def node(
    installed: Path, system: Path, network: Network, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """A machine with the exporter, booted again after it was installed."""
    with Machine(
        tmp_path_factory.mktemp("systemd"), "node1", [installed, system], network, 1
    ) as machine:
        assert wait_for(lambda: answers(ready(machine)) or None, 30), journal(machine)
        yield machine


def ready(machine: Machine) -> str:
    return f"http://{machine.address}:9917/-/ready"


def journal(machine: Machine) -> str:
    return machine.run(f"journalctl -u {SERVICE} --no-pager")


def main_pid(machine: Machine) -> int:
    return int(machine.run(f"systemctl show --property=MainPID --value {SERVICE}"))


def test_service_starts_at_boot_and_answers(node: Machine) -> None:
    """After a reboot the metrics are there, and nothing has failed."""
    assert "rankskew_gpus_visible 0" in node.run("curl -s localhost:9917/metrics")
    assert node.run("systemctl --failed --no-legend --plain") == ""


def test_sockets_are_for_whom_the_page_says(node: Machine) -> None:
    """Any user may report; orders are for root and the exporter's own user."""
    said = node.run(f"stat -c '%a %U %n' {SOCKET} /run/rankskew-operator/operator.sock")

    assert said.splitlines() == [
        f"666 rankskew {SOCKET}",
        "600 rankskew /run/rankskew-operator/operator.sock",
    ]
    assert "ok: ranks can report" in node.run(CHECK, user="alice")
    assert "GPUs" in node.run("/opt/rankskew/bin/rankskew gpus release --for 1s")
    with pytest.raises(CommandFailed):
        node.run("/opt/rankskew/bin/rankskew gpus release", user="alice")


def test_killed_service_is_back_within_three_seconds(node: Machine) -> None:
    """So is its socket, in the directory that containers have mounted."""
    directory = node.run("stat -c %i /run/rankskew")
    before = main_pid(node)
    node.run(f"kill -9 {before}")
    killed = time.monotonic()
    back = wait_for(lambda: answers(ready(node)) or None, 10, every=0.05)
    seconds = time.monotonic() - killed

    assert back, journal(node)
    assert seconds < 4, f"{seconds:.1f} s"
    assert main_pid(node) != before
    assert "ok: ranks can report" in node.run(CHECK, user="alice")
    assert node.run("stat -c %i /run/rankskew") == directory


def test_stop_is_clean_and_keeps_the_directories(node: Machine) -> None:
    """It ends with status 0 and no process, and containers keep what they have mounted."""
    node.run(f"systemctl stop {SERVICE}")
    said = node.run(f"systemctl show --property=Result,ExecMainStatus {SERVICE}")

    assert said.split() == ["Result=success", "ExecMainStatus=0"]
    assert node.run("ls /run/rankskew /run/rankskew-operator").split() == [
        "/run/rankskew:",
        "/run/rankskew-operator:",
    ]
    assert node.run("pgrep -u rankskew || echo none").strip() == "none"
    node.run(f"systemctl start {SERVICE}")
    assert wait_for(lambda: answers(ready(node)) or None, 30)


def test_limits_hold(node: Machine) -> None:
    """Memory beyond MemoryMax, other devices and other system calls are refused."""
    properties = "MemoryMax TasksMax DevicePolicy SystemCallFilter SystemCallErrorNumber"
    unit = node.run(f"systemctl cat {SERVICE}")
    chosen = [
        f"--property={line}"
        for line in unit.splitlines()
        if line.partition("=")[0] in [*properties.split(), "DeviceAllow", "User"]
    ]
    run = f"systemd-run --quiet --wait --pipe {' '.join(map(repr, chosen))} python3 -c "

    with pytest.raises(CommandFailed, match="exits with"):
        node.run(run + "'bytearray(600 << 20)'")
    tries = "import os; os.setpriority(os.PRIO_PROCESS, 0, 9)"
    with pytest.raises(CommandFailed, match="PermissionError"):
        node.run(f'{run}"{tries}"')
    node.run("mknod -m 666 /dev/other c 1 11")
    with pytest.raises(CommandFailed, match="PermissionError"):
        node.run(f"{run}\"open('/dev/other')\"")


def test_rating_is_what_the_page_says(node: Machine) -> None:
    """systemd's own opinion of the running unit, not only of the file."""
    said = node.run(f"systemd-analyze security --no-pager {SERVICE}")
    [rating] = re.findall(r"exposure level for \S+: ([\d.]+)", said)

    assert f"the unit {rating}," in Path(__file__).parents[2].joinpath(PAGE).read_text()


def test_see_all_finds_ranks_of_other_users(node: Machine) -> None:
    """The drop-in adds what it says: processes of other users can be read, as before they cannot."""
    try_it = "python3 -c \"open('/proc/1/environ').read()\""
    as_service = (
        f"nsenter --target $(systemctl show -P MainPID {SERVICE}) --mount -- "
        "grep CapEff /proc/$(systemctl show -P MainPID {SERVICE})/status"
    ).replace("{SERVICE}", SERVICE)
    assert node.run(as_service).split()[1] == "0" * 16
    assert try_it
    [grant] = blocks(PAGE, "Let it see more")
    node.run(grant)
    assert wait_for(lambda: answers(ready(node)) or None, 30), journal(node)

    assert int(node.run(as_service).split()[1], 16) == 1 << 19 | 1 << 34


def test_page_removes_what_it_installed(node: Machine) -> None:
    """No file, user or process of ours is left; it runs last."""
    [remove] = blocks(PAGE, "Remove it")
    node.run(remove)

    left = "find / -xdev -iname '*rankskew*' -not -path '/proc/*' -not -path '/tmp/*' || true"
    assert [line for line in node.run(left).splitlines() if "/journal/" not in line] == []
    assert node.run("getent passwd rankskew || echo none").strip() == "none"
    assert node.run("getent group rankskew || echo none").strip() == "none"
