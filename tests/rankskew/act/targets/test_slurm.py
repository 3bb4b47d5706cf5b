"""Slurm is told through scontrol, and only what is ours is taken back."""

from pathlib import Path

import pytest

from exporter.errors import StartError
from rankskew.act.targets.slurm import Slurm
from rankskew.client.fetch import Trouble
from tests.rankskew.act.slurm_site import SlurmSite

LINE = {"event": "hold", "name": "n1", "time": 1.0, "sentence": "slow GPU\n(clock) for 45m"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmSite:
    return SlurmSite(tmp_path, monkeypatch)


def test_partitions_are_told(site: SlurmSite) -> None:
    found = Slurm().pools()

    assert found == {"partition a": {"n1", "n2"}, "partition b": {"n1"}}


def test_node_is_drained_once_and_resumed(site: SlurmSite) -> None:
    """With a reason on one line, by which it is known as ours."""
    slurm = Slurm()
    slurm.hold(LINE)
    slurm.hold(LINE)
    n1 = site.read()["nodes"]["n1"]

    assert (n1["state"], n1["reason"]) == ("MIXED+DRAIN", "rankskew: slow GPU (clock) for 45m")
    assert slurm.holds("n1")
    assert not slurm.holds("n2")
    slurm.free(LINE)
    assert site.read()["nodes"]["n1"]["state"] == "MIXED"
    assert len([each for each in site.read()["asked"] if each[1:2] == ["update"]]) == 2


def test_drain_of_somebody_else_is_left_alone(site: SlurmSite) -> None:
    """Neither is its reason overwritten, nor the node resumed."""
    site.set(state="IDLE+DRAIN", reason="bad disk, see rankskew: no")
    slurm = Slurm()
    with pytest.raises(Trouble, match="n1 is drained already, for another reason: bad disk, see"):
        slurm.hold(LINE)
    slurm.free(LINE)

    assert not slurm.holds("n1")
    assert site.read()["nodes"]["n1"]["reason"] == "bad disk, see rankskew: no"


def test_reason_that_was_changed_is_not_ours_any_more(site: SlurmSite) -> None:
    slurm = Slurm()
    slurm.hold(LINE)
    site.set(reason="waits for a technician")
    slurm.free(LINE)

    assert site.read()["nodes"]["n1"]["state"] == "MIXED+DRAIN"


def test_old_reason_of_a_resumed_node_holds_nothing(site: SlurmSite) -> None:
    """Slurm may show a reason without a drain."""
    site.set(reason="rankskew: slow GPU")

    assert not Slurm().holds("n1")


def test_what_slurm_says_is_told(site: SlurmSite) -> None:
    with pytest.raises(Trouble, match="scontrol fails: Node n9 not found"):
        Slurm().holds("n9")


def test_machine_without_slurm_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(StartError, match="--slurm: cannot run sinfo: No such file or directory"):
        Slurm()
