"""Small memories: figures of a window, the last scrapers, and whose a cgroup is."""

import pytest

from exporter.cgroups import Cgroup, parse
from exporter.past import Past
from exporter.scrapers import AGENT_CHARACTERS, MOST_REMEMBERED, Scraper, Scrapers
from tests.exporter.clock import Clock


def test_value_of_then_is_the_one_that_stood_when_the_window_began() -> None:
    """A change inside the window has not happened then; one before it has."""
    past = Past(60.0)
    for at, value in ((0.0, 1.0), (10.0, 1.0), (30.0, 2.0), (80.0, 2.0)):
        past.see("a", value, at)
    assert past.then("a") == (0.0, 1.0)

    past.see("a", 2.0, 90.0)
    assert past.then("a") == (30.0, 2.0)


def test_young_memory_compares_with_the_first_value() -> None:
    """What was before is not known; but an error is counted from 1 on, and that one counts."""
    past = Past(60.0)
    past.see("a", 100.0, 0.0)
    assert (past.increase("a", 103.0), past.increase("b", 103.0)) == (3.0, 0.0)

    past.count("xid", 1.0, 0.0, first=0.0)
    assert past.increase("xid") == 1.0
    past.count("xid", 1.0, 60.0, first=0.0)
    assert past.increase("xid") == 0.0


@pytest.mark.parametrize(("first", "increase"), [(None, 3.0), (0.0, 5.0)])
def test_counter_that_begins_again_goes_on(first: float | None, increase: float) -> None:
    """It had grown by 3; whether the 2 that it begins with are new depends on where it begins."""
    past = Past(60.0)
    past.see("a", 5.0, 0.0)
    past.count("a", 8.0, 10.0, first)
    past.count("a", 2.0, 20.0, first)
    assert past.increase("a") == increase

    past.count("a", 2.0, 80.0, first)
    assert past.increase("a") == 0.0
    past.begin_again()  # Only who reads it knows, if it is as high as before.
    past.count("a", 2.0, 90.0)
    assert past.increase("a") == 2.0


def test_what_is_dropped_or_not_kept_starts_again() -> None:
    """Ranks and links that are gone leave nothing behind."""
    past = Past(60.0)
    past.see("a", 1.0, 0.0)
    past.see("b", 1.0, 0.0)
    past.drop("a")
    past.keep({"a"})

    assert past.increase("a", 7.0) == past.increase("b", 7.0) == 0.0


def test_latest_scraper_comes_first() -> None:
    """Each address is remembered once, with its last fetch and how long ago that was."""
    clock = Clock()
    scrapers = Scrapers(clock)
    for address in ("10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1"):
        scrapers.see(address, "Prometheus/2.53.0")
        clock.seconds += 15.0

    assert scrapers.latest() == [
        Scraper("10.0.0.1", "Prometheus/2.53.0", 15.0),
        Scraper("10.0.0.2", "Prometheus/2.53.0", 30.0),
    ]


def test_flood_of_addresses_costs_no_memory() -> None:
    """Only the latest few stay; a client may call itself anything, and is cut and printable."""
    scrapers = Scrapers(Clock())
    for number in range(10 * MOST_REMEMBERED):
        scrapers.see(f"fd00::{number}", "\x1b[2J" + "x" * 10_000)

    kept = range(10 * MOST_REMEMBERED - 1, 9 * MOST_REMEMBERED - 1, -1)
    assert [scraper.address for scraper in scrapers.latest()] == [f"fd00::{n}" for n in kept]
    assert scrapers.latest()[0].agent == "?[2J" + "x" * (AGENT_CHARACTERS - 4)


POD = "12345678-9abc-def0-1234-56789abcdef0"
STATIC_POD = "0123456789abcdef0123456789abcdef"
CONTAINER = "0123456789abcdef" * 4
SLICE = f"kubepods-burstable-pod{POD.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    "text", ["", "0::/\n", "0::/user.slice/user-1000.slice/session-3.scope", "garbage", ":::"]
)
def test_process_of_nobody_in_particular_says_nothing(text: str) -> None:
    """A login session, or an invalid file, is neither pod nor job; a mere name is none."""
    assert parse(text) == Cgroup()
    assert parse("0::/batch/job_4711/step_0").slurm_job_id == ""


@pytest.mark.parametrize(
    "path",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{CONTAINER}.scope",
        f"0::/kubepods.slice/{SLICE}/crio-{CONTAINER}.scope",
        f"12:cpu:/kubepods/burstable/pod{POD}/{CONTAINER}\n1:name=systemd:/\n",
        f"0::/../../{SLICE}/docker-{CONTAINER}.scope",
        # kind: the outer container is the node.
        f"0::/docker/{'f' * 64}/kubelet.slice/kubelet-kubepods.slice/{SLICE}/x-{CONTAINER}.scope",
    ],
)
def test_pod_and_container_are_told(path: str) -> None:
    """Either version of cgroups, either driver and each runtime give the same."""
    cgroup = parse(path)

    assert (cgroup.pod_uid, cgroup.container_id) == (POD, CONTAINER)
    assert cgroup.container.replace("_", "-") == POD
    # The uid of a pod from a file of the node is a hash.
    assert parse(f"0::/kubepods/pod{STATIC_POD}/{CONTAINER}").pod_uid == STATIC_POD


@pytest.mark.parametrize(
    "path",
    [
        "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3",
        "0::/system.slice/node1_slurmstepd.scope/job_4711/step_0/user/task_0",
        "9:memory:/slurm/uid_1000/job_4711/step_0/task_0",
    ],
)
def test_slurm_job_and_step_are_told(path: str) -> None:
    """Either version of cgroups gives job and step."""
    assert parse(path) == Cgroup(slurm_job_id="4711", slurm_step_id="0", container="4711")
