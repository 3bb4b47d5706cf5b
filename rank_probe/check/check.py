"""`rank-probe check`: could a rank that starts here report, and would anybody see it?"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rank_probe.check.exporter import TIMEOUT_SECONDS, DryRunAnswer, dry_run
from rank_probe.check.problem import CannotReport
from rank_probe.check.torch_here import TorchHere, torch_here
from rank_probe.check.unix_socket import SocketFile, look_at, require_writable
from rank_probe.process import identity
from rank_probe.process.facts import LABELS, MOST_LABELS, MOST_NAME, MOST_VALUE, wrong_labels
from rank_probe.process.identity import Identity
from rank_probe.report.endpoint import DEFAULT_ENDPOINT, socket_path
from rank_probe.version import __version__
from rank_probe.wire.no_join import OFF, why_not_joined
from rank_probe.wire.snapshot import Snapshot
from rank_probe.wire.stages import OTHER, STAGES

# Two scrapes at the longest interval that is in use, and a Prometheus that was restarted.
LATELY_SECONDS: Final = 300.0
POLL_SECONDS: Final = 2.0
# Without a rank in the environment, as in a prolog: a run that begins after all that were here.
LATER_THAN_ANY: Final = 2**31


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found, as far as the check came; *problem* is None if ranks can report."""

    job_id: str
    job_source: str
    rank: Identity | None
    rank_source: str | None
    endpoint: str
    socket: SocketFile | None
    answer: DryRunAnswer | None
    problem: CannotReport | None
    warnings: tuple[str, ...]
    torch: TorchHere | None = None


def check(
    environment: Mapping[str, str],
    wait_seconds: float = 0.0,
    require_scrape: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
) -> Checked:
    """Look, for up to *wait_seconds* until all is well; *say* what that waits for."""
    give_up = time.monotonic() + wait_seconds
    said = ""
    while True:
        found = look(environment, require_scrape, say)
        left = give_up - time.monotonic()
        if found.problem is None or not found.problem.may_pass or left <= 0:
            return found
        if str(found.problem) != said:
            said = str(found.problem)
            say(f"waiting for up to {left:.0f} s: {said}")
        time.sleep(min(POLL_SECONDS, left))


def look(
    environment: Mapping[str, str],
    require_scrape: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
) -> Checked:
    """Look once."""
    known = identity.with_namespace(environment)
    endpoint = known.get("RANKSKEW_EXPORTER") or DEFAULT_ENDPOINT
    me = identity.from_environment(known)
    socket, answer, problem = None, None, None
    try:
        path = socket_path(endpoint)
        if path is not None:
            socket = look_at(path)
            require_writable(socket)
        with _patience(say, endpoint):
            answer = dry_run(endpoint, first_snapshot(known, me), known)
        answer.require_accepted()
        if require_scrape:
            _require_scrape(answer)
    except CannotReport as found:
        problem = found
    return Checked(
        job_id=identity.job_id(known),
        job_source=identity.job_id_source(known),
        rank=me,
        rank_source=identity.rank_source(known),
        endpoint=endpoint,
        socket=socket,
        answer=answer,
        problem=problem,
        warnings=tuple(_warnings(known, answer, require_scrape)),
        torch=torch_here(),
    )


@contextmanager
def _patience(say: Callable[[str], None], endpoint: str) -> Iterator[None]:
    """Say what is waited for if the block takes longer than people expect."""
    sentence = f"waiting for {endpoint} to answer, for up to {2 * TIMEOUT_SECONDS:.0f} s"
    timer = threading.Timer(TIMEOUT_SECONDS / 2, say, (sentence,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def first_snapshot(environment: Mapping[str, str], me: Identity | None) -> Snapshot:
    """Return what a rank would push first; that of rank 0 if the environment names none."""
    now = time.time()
    mine = me or identity.for_rank(environment, 0, 1)
    return Snapshot(
        job_id=mine.job_id,
        peer_group=mine.peer_group,
        rank=mine.rank,
        world_size=mine.world_size,
        attempt=LATER_THAN_ANY if me is None else mine.attempt,
        pid=os.getpid(),
        started_timestamp_seconds=now,
        sequence=1,
        heartbeat_timestamp_seconds=now,
        steps=0,
        stage_seconds={},
        busy_seconds=0.0,
        busy_seconds_squared=0.0,
        stage=STAGES[OTHER],
        stage_elapsed_seconds=0.0,
    )


def _nobody_scrapes(answer: DryRunAnswer) -> str | None:
    """Return that nobody has scraped the exporter lately; None if somebody has."""
    if any(one.seconds_ago <= LATELY_SECONDS for one in answer.scraped):
        return None
    return (
        f"nobody has scraped this exporter in the last {LATELY_SECONDS / 60:.0f} minutes: add the "
        "node to scrape_configs in Prometheus"
    )


def _require_scrape(answer: DryRunAnswer) -> None:
    if nobody := _nobody_scrapes(answer):
        raise CannotReport(nobody, may_pass=True)


def _no_join(environment: Mapping[str, str], answer: DryRunAnswer | None) -> str:
    """Return why the ranks of the job will not, or do not, compare their steps; empty if they may.

    What their process group is made of shows once they run.
    """
    if environment.get("RANK_PROBE_JOIN") == "0":
        return OFF
    running = () if answer is None else answer.running or ()
    mine = identity.job_id(environment)
    return next((job.no_join for job in running if job.job_id == mine and job.no_join), "")


def _warnings(
    environment: Mapping[str, str], answer: DryRunAnswer | None, require_scrape: bool
) -> Iterator[str]:
    if environment.get("RANK_PROBE") == "0":
        yield "RANK_PROBE=0 turns the probe off here: no rank will report"
    if why := _no_join(environment, answer):
        yield (
            f"the ranks of job {identity.job_id(environment)!r} do not compare their steps: "
            f"{why_not_joined(why)}; the exporter of each node compares its own ranks"
        )
    if wrong := wrong_labels(environment):
        yield (
            f"{LABELS} has {wrong[0][:MOST_VALUE]!r}, which is left out: write at most "
            f"{MOST_LABELS} different labels as name=value, with commas between; a name has up to "
            f"{MOST_NAME} of A-Z a-z 0-9 _ . -, a value up to {MOST_VALUE} characters"
        )
    if answer is None:
        return
    if answer.version != __version__:
        yield (
            f"the exporter is rankskew {answer.version} and this probe {__version__}: use the same "
            "release, and upgrade exporters first"
        )
    if answer.unknown_fields:
        yield f"the exporter does not know {answer.unknown_fields} fields of this probe's snapshots"
    nobody = _nobody_scrapes(answer)
    if nobody and not require_scrape:
        yield nobody
