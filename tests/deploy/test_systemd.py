"""The unit under a real systemd: each command of its page, and what it promises of the service."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from devstack.process import answers, wait_for
from tests.deploy import blocks
from tests.deploy.machine import CommandFailed, Machine, Network

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

PAGE: Final = "deploy/systemd/README.md"
SOCKET = "/run/rankskew/exporter.sock"
OPERATOR = "/run/rankskew-operator/operator.sock"
CHECK = "/opt/rankskew/bin/rank-probe check"
SERVICE = "rankskew-exporter"
CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYSLOG = 2, 19, 34


@pytest.fixture(scope="module")
def node(
    installed: Path, system: Path, network: Network, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """A machine with the exporter, booted again after it was installed."""
    directory = tmp_path_factory.mktemp("systemd")
    with Machine(directory, "node1", [installed, system], network, 1) as machine:
        assert wait_for(lambda: answers(ready(machine)) or None, 30), journal(machine)
        yield machine


def ready(machine: Machine) -> str:
    return f"http://{machine.address}:9917/-/ready"


def journal(machine: Machine) -> str:
    return machine.run(f"journalctl -u {SERVICE} --no-pager")


def shown(machine: Machine, *properties: str) -> list[str]:
    """Return what systemd says of *properties* of the service."""
    asked = ",".join(properties)
    return machine.run(f"systemctl show --property={asked} --value {SERVICE}").split()


def test_service_starts_at_boot_and_answers(node: Machine) -> None:
    """After a reboot the metrics are there; any user may report, and few give orders."""
    assert "rankskew_gpus_visible 0" in node.run("curl -s localhost:9917/metrics")
    assert node.run("systemctl --failed --no-legend --plain") == ""
    said = node.run(f"stat -c '%a %U %n' {SOCKET} {OPERATOR}")
    assert said.splitlines() == [f"666 rankskew {SOCKET}", f"600 rankskew {OPERATOR}"]
    assert "ok: ranks can report" in node.run(CHECK, user="alice")
    assert "GPUs" in node.run("/opt/rankskew/bin/rankskew control --release-gpus --for 1s")
    with pytest.raises(CommandFailed):
        node.run("/opt/rankskew/bin/rankskew control --release-gpus", user="alice")


def test_service_comes_back_and_stops_cleanly(node: Machine) -> None:
    """After a kill or stop no process is left; the directories that containers mount stay."""
    directories = "stat -c '%i %n' /run/rankskew /run/rankskew-operator"
    made = node.run(directories)
    [killed] = shown(node, "MainPID")
    node.run(f"kill -9 {killed}")

    def successor() -> bool | None:
        return shown(node, "MainPID")[0] not in ("0", killed) or None

    assert wait_for(successor, 20), journal(node)
    assert wait_for(lambda: answers(ready(node)) or None, 20), journal(node)
    assert "ok: ranks can report" in node.run(CHECK, user="alice")
    assert node.run(directories) == made

    node.run(f"systemctl stop {SERVICE}")
    assert shown(node, "Result", "ExecMainStatus") == ["success", "0"]
    assert node.run(directories) == made
    assert node.run("pgrep -u rankskew || echo none").strip() == "none"
    node.run(f"systemctl start {SERVICE}")
    assert wait_for(lambda: answers(ready(node)) or None, 30)


def test_see_all_grants_what_the_page_says(node: Machine) -> None:
    """The service holds the capabilities that the page names with the drop-in, and none without."""
    status = f"grep CapEff /proc/$(systemctl show -P MainPID {SERVICE})/status"
    assert int(node.run(status).split()[1], 16) == 0
    [grant] = blocks(PAGE, "Let it see more")
    node.run(grant)
    assert wait_for(lambda: answers(ready(node)) or None, 30), journal(node)

    granted = CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYSLOG
    assert int(node.run(status).split()[1], 16) == sum(1 << number for number in granted)


def test_page_removes_what_it_installed(node: Machine) -> None:
    """Removal leaves no file, user or group of ours; this test runs last."""
    [remove] = blocks(PAGE, "Remove it")
    node.run(remove)

    left = "find / -xdev -iname '*rankskew*' -not -path '/proc/*' -not -path '/tmp/*' || true"
    assert [line for line in node.run(left).splitlines() if "/journal/" not in line] == []
    assert node.run("getent passwd rankskew || echo none").strip() == "none"
    assert node.run("getent group rankskew || echo none").strip() == "none"
