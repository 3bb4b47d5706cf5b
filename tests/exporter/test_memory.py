"""The exporter's memory: its scrapers, and the events of ranks that it has logged.

Also the owner of a cgroup, and the log format: one line per record, for programs to parse.
"""

import json
import logging
import sys
from dataclasses import replace
from typing import Any

import pytest

from exporter.cgroups import Cgroup, parse
from exporter.events import MOST_RANKS, RECORDS_A_MINUTE, EventLog
from exporter.log import FORMATS
from exporter.scrapers import AGENT_CHARACTERS, MOST_REMEMBERED, Scraper, Scrapers
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.node import Clock
from tests.exporter.snapshots import snapshot


def test_latest_scraper_comes_first() -> None:
    """Each address is remembered once, with its last fetch and how long ago that was.

    Of a flood only the latest few stay. What a client calls itself is cut, and printable.
    """
    clock = Clock()
    scrapers = Scrapers(clock)
    for address in ("10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1"):
        scrapers.see(address, "Prometheus/2.53.0")
        clock.seconds += 15.0
    assert scrapers.latest() == [
        Scraper("10.0.0.1", "Prometheus/2.53.0", 15.0),
        Scraper("10.0.0.2", "Prometheus/2.53.0", 30.0),
    ]

    flood = [f"fd00::{number}" for number in range(2 * MOST_REMEMBERED)]
    for address in flood:
        scrapers.see(address, "\x1b[2J" + "x" * 10_000)
    latest = scrapers.latest()
    assert [each.address for each in latest] == flood[: MOST_REMEMBERED - 1 : -1]
    assert latest[0].agent == "?[2J" + "x" * (AGENT_CHARACTERS - 4)


POD = "12345678-9abc-def0-1234-56789abcdef0"
CONTAINER = "0123456789abcdef" * 4
SLICE = f"kubepods-burstable-pod{POD.replace('-', '_')}.slice"
IN_POD = Cgroup(POD, CONTAINER, container=POD.replace("-", "_"))
IN_JOB = Cgroup(slurm_job="4711", slurm_step_id="0", container="4711")
IN_LSF = Cgroup(lsf_job="9", container="9")
OWN = "0::/user.slice/user-1000.slice/user@1000.service"
BY_SLUID = Cgroup(slurm_job="s5K1KKYAYG5D00", slurm_step_id="0", container="s5K1KKYAYG5D00")


@pytest.mark.parametrize(
    ("text", "cgroup"),
    [
        # A login session, or an invalid file, is neither pod nor job; a mere name is none.
        *((text, Cgroup()) for text in ("", "0::/\n", "garbage", "0::/user.slice/x.scope")),
        # Either version of cgroups, either driver and each runtime give the same.
        (f"0::/kubepods.slice/{SLICE}/cri-containerd-{CONTAINER}.scope", IN_POD),
        (f"0::/../../{SLICE}/docker-{CONTAINER}.scope", IN_POD),
        # kind: the outer container is the node.
        (f"0::/docker/{'f' * 64}/kubelet.slice/kubelet-{SLICE}/x-{CONTAINER}.scope", IN_POD),
        *(
            (f"{path}/pod{POD}/{CONTAINER}\n1:name=systemd:/\n", replace(IN_POD, container=POD))
            for path in ("12:cpu:/kubepods/burstable", "0::/../..", "0::/../../../burstable")
        ),
        ("0::/system.slice/node1_slurmstepd.scope/job_4711/step_0/user/task_0", IN_JOB),
        ("9:memory:/slurm/uid_1000/job_4711/step_0/task_0", IN_JOB),
        ("9:memory:/slurm_node1/uid_1000/job_4711/step_0/task_0\n1:name=systemd:/\n0::/", IN_JOB),
        # Slurm 26.05 names the job by its SLUID (cgroup.conf(5), CgroupJobIdPaths).
        ("0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0", BY_SLUID),
        ("0::/system.slice/node1_slurmstepd.scope/s5K1KKYAYG5D00/step_0/user", BY_SLUID),
        # Jobs of LSF on Grid'5000, in either version (CEEMS, pkg/collector/cgroup.go).
        ("0::/lsf/cluster1/job.9.30675.1775295256/leaf", IN_LSF),
        ("9:cpuset:/\n8:memory:/lsf/cluster1/job.9.34071.1775289779\n1:name=systemd:/", IN_LSF),
        ("0::/lsf/c/job.9[2].30675.1775295256/leaf", Cgroup(lsf_job="9[2]", container="9[2]")),
        # Seen from a container, beside which Slurm's scope is.
        ("0::/../slurmstepd.scope/job_4711/step_0/user/task_0", IN_JOB),
        # A user names the cgroups below the own service, and root of a container those in it.
        (f"{OWN}/lsf/cluster1/job.9.30675.1775295256/leaf", Cgroup()),
        (f"{OWN}/slurm/uid_0/job_4711/step_0", Cgroup()),
        (f"{OWN}/x.slice/slurmstepd.scope/job_4711", Cgroup()),
        ("0::/lxc.payload.slurm/job_4711/step_0", Cgroup()),
        ("9:cpu:/lxc/c1/slurm/uid_0/job_4711/step_0", Cgroup()),
        ("0::/system.slice/systemd-nspawn@c1.service/payload/slurmstepd.scope/job_4711", Cgroup()),
        # Flux with sdexec (flux-core, bulk-exec.c) has them below its user's service, where any
        # other user may have the same; without it all jobs are in that of the broker.
        (f"{OWN}/app.slice/imp-shell-0-fTE9HHdZvi3.service", Cgroup()),
        ("0::/system.slice/flux.service", Cgroup()),
    ],
)
def test_pod_or_batch_job_is_told_from_the_cgroup(text: str, cgroup: Cgroup) -> None:
    assert parse(text) == cgroup


def record(message: str, *arguments: object, **given: Any) -> logging.LogRecord:
    """Return what logger.warning() would make of these, at 2026-11-23T08:04:30.5 UTC."""
    made = logging.getLogger("exporter.web").makeRecord(
        "exporter.web", logging.WARNING, "file.py", 7, message, arguments, **given
    )
    made.created = 1795421070.5
    return made


def test_record_is_one_line_with_its_fields() -> None:
    """One object or logfmt record per line, as Prometheus itself logs, whatever is in the message.

    The lines of an exception stay together; what JSON lacks is text.
    """
    given = record('a "b"\nis ×', exc_info=None, extra={"job_id": "x=1", "ranks": 3, "none": ""})
    assert json.loads(FORMATS["json"]().format(given)) == {
        **{"time": "2026-11-23T08:04:30.500Z", "level": "warning", "ranks": 3, "none": ""},
        **{"message": 'a "b"\nis ×', "logger": "exporter.web", "job_id": "x=1"},
    }
    assert FORMATS["logfmt"]().format(given) == (
        'time=2026-11-23T08:04:30.500Z level=warning message="a \\"b\\"\\nis ×" '
        'logger=exporter.web job_id="x=1" ranks=3 none=""'
    )

    try:
        raise ValueError("no")
    except ValueError:
        failed = record("it failed", exc_info=sys.exc_info(), extra={"path": logging})
    line = FORMATS["json"]().format(failed)
    assert "\n" not in line
    said = json.loads(line)
    assert said["traceback"].startswith("Traceback (most recent call last):\n")
    assert said["traceback"].endswith("\nValueError: no")
    assert "module 'logging'" in said["path"]


Said = tuple[str, str, float | None]


class Book:
    """An event log whose records a test reads."""

    def __init__(self, caplog: pytest.LogCaptureFixture, began: float = 0.0) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self.clock = Clock()
        self.log = EventLog("node1", lambda: began, self.clock)

    def see(self, *snapshots: Snapshot) -> list[dict[str, Any]]:
        """Return the fields of the records that *snapshots* add."""
        self._caplog.clear()
        for each in snapshots:
            self.log.see(each)
        return [vars(record) for record in self._caplog.records]

    def short(self, *snapshots: Snapshot) -> list[Said]:
        """Return the same: event, state and duration."""
        return [(r["event"], r["state"], r["duration_seconds"]) for r in self.see(*snapshots)]


@pytest.fixture
def book(caplog: pytest.LogCaptureFixture) -> Book:
    return Book(caplog)


def event(number: int, name: str, began: float, seconds: float | None = None) -> dict[str, Any]:
    return {"number": number, "event": name, "began_timestamp_seconds": began, "seconds": seconds}


def telling(*events: dict[str, Any], **changes: Any) -> Snapshot:
    return snapshot(lifecycle_events=list(events), **changes)


INIT = event(1, "init", 1_000.0, 3.0)
RENUMBERED = {"group_formed_timestamp_seconds": 1_100.5}
BEGUN, DONE = event(2, "checkpoint", 1_010.0), event(2, "checkpoint", 1_010.0, 5.0)


def test_each_change_is_one_record_however_often_it_is_told(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    """Snapshots repeat their events, so that a lost snapshot loses no event.

    A record has the rank, the event and its time. Numbers identify events, but do not give the
    order in which they end. Events before the exporter's start are in its predecessor's log.
    """
    [record] = book.see(telling(INIT))
    assert record["msg"] % record["args"] == "rank 0 of job 'llama': init done after 3.0 s"
    expected = {
        **{"event": "init", "state": "done", "event_timestamp_seconds": 1_003.0},
        **{"duration_seconds": 3.0, "job_id": "llama", "rank": 0, "peer_group": "all"},
        **{"host": "node1", "pid": 4711, "attempt": 0, "steps": 100},
    }
    assert {name: record[name] for name in expected} == expected
    assert book.short(*[telling(INIT, BEGUN)] * 2) == [("checkpoint", "began", None)]
    evaluated = event(3, "evaluation", 1_012.0, 2.0)
    assert book.short(telling(BEGUN, evaluated)) == [("evaluation", "done", 2.0)]
    assert book.short(*[telling(DONE, evaluated)] * 2) == [("checkpoint", "done", 5.0)]
    again = Book(caplog, began=1_005.0)
    assert again.short(telling(INIT, DONE)) == [("checkpoint", "done", 5.0)]


@pytest.mark.parametrize(
    ("before", "after", "records"),
    [
        # It took from the last report of the old process to the start of the new one.
        (telling(INIT), {"attempt": 1}, [("restart", "done", 40.0)]),
        # The node before knew the process before, this one only that there was one.
        (None, {"attempt": 1}, [("restart", "done", None)]),
        # The launcher's restart outweighs the old process's report that it had finished.
        (telling(finished=True), {"attempt": 1}, [("restart", "done", 40.0)]),
        # A job id such as `local` is used again by the next run.
        (telling(finished=True), {}, []),
        (None, {}, []),
        # It ran before, as another rank; whoever had the number may not have said that it left.
        (telling(INIT), RENUMBERED, []),
        (None, {"attempt": 1} | RENUMBERED, []),
    ],
)
def test_process_that_replaces_a_dead_one_is_a_restart(
    before: Snapshot | None, after: dict[str, Any], records: list[Said], book: Book
) -> None:
    book.see(*[before] if before else [])

    assert book.short(telling(started_timestamp_seconds=1_100.5, **after)) == records


def test_rank_with_too_many_events_is_cut_short_alone(book: Book) -> None:
    """A process that makes up events does not fill the disk, and costs nobody else a record.

    Nor does a node that sees any number of ranks in its life run out of memory.
    """
    numbers = range(1, RECORDS_A_MINUTE + 11)
    records = book.see(*[telling(event(n, "checkpoint", 1_000.0, 1.0)) for n in numbers])
    assert len(records) == RECORDS_A_MINUTE
    again = book.see(*[telling(INIT, rank=2, attempt=n) for n in range(RECORDS_A_MINUTE)])
    assert len(again) == RECORDS_A_MINUTE
    assert len(book.see(telling(INIT, rank=1))) == 1
    book.clock.seconds += 60
    assert len(book.see(telling(event(999, "checkpoint", 1_000.0, 1.0)))) == 1

    book.see(*[telling(INIT, rank=n, world_size=MOST_RANKS + 1) for n in range(MOST_RANKS + 1)])
    assert len(book.log._known) == MOST_RANKS
