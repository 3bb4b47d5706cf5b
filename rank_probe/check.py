"""`rank-probe check`: could a rank that starts here report, and would anybody see it?"""

import contextlib
import http.client
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rank_probe.command_line.parser import CommandParser, duration
from rank_probe.process import identity
from rank_probe.process.facts import LABELS, MOST_LABELS, MOST_NAME, MOST_VALUE, wrong_labels
from rank_probe.process.identity import Identity
from rank_probe.report.endpoint import DEFAULT_ENDPOINT, NoEndpoint, ask, socket_path
from rank_probe.version import __version__
from rank_probe.wire.document import as_document
from rank_probe.wire.no_join import OFF, why_not_joined
from rank_probe.wire.snapshot import DRY_RUN_PATH, Snapshot
from rank_probe.wire.stages import OTHER, STAGES

DESCRIPTION: Final = """\
Post a dry run of a snapshot to the exporter of this node, and say whether a rank
that starts here could report, under which name, and who scrapes the exporter.
The exporter keeps nothing of it. An answer is awaited for up to 2 s."""
EXAMPLES: Final = """\
exit status: 0 if ranks can report, 1 if not, 2 for wrong usage

examples:
  rank-probe check                  # on the node, or at the top of a job script
  rank-probe check --wait 60s       # in a prolog or an init container: until the exporter is up
  rank-probe check --require-scrape --json | jq .warnings
"""
# A busy exporter answers in milliseconds; a node that starts may take a little longer.
TIMEOUT_SECONDS: Final = 2.0
# Allows for two scrapes at the longest interval in use, and a restart of Prometheus.
LATELY_SECONDS: Final = 300.0
NOBODY_SCRAPES: Final = (
    "nobody has scraped this exporter in the last 5 minutes: add the node to scrape_configs in "
    "Prometheus"
)
POLL_SECONDS: Final = 2.0
# The attempt if the environment names no rank, as in a prolog: later than any run on this node.
LATER_THAN_ANY: Final = 2**31
# Waiting may help: another job, or the last run of this one, may be about to end.
PASSING_RESULTS: Final = ("no_room", "forbidden", "superseded")
# Statuses of an exporter that has not read the snapshot, and whether waiting may help.
REFUSALS: Final = {401: False, 413: False, 429: True, 503: True}


class CannotReport(Exception):
    """One sentence on what is wrong and what to do; *may_pass* says that waiting may help."""

    def __init__(self, sentence: str, may_pass: bool = False) -> None:
        super().__init__(sentence)
        self.may_pass = may_pass


class DryRunAnswer(NamedTuple):
    """What an exporter of *version* says about a snapshot; *reason* is why it would refuse it.

    *scraped* are the address, agent and seconds_ago of those that fetched /metrics last. *no_join*
    is why the job's ranks that run there do not compare their steps: one of wire.no_join, or empty.
    """

    version: str
    result: str
    reason: str | None
    unknown_fields: int
    scraped: list[dict[str, Any]]
    no_join: str

    @property
    def is_scraped(self) -> bool:
        """Whether anybody has fetched /metrics lately."""
        return any(one["seconds_ago"] <= LATELY_SECONDS for one in self.scraped)


def parser() -> CommandParser:
    """Return the parser of the command's options."""
    options = CommandParser("check", DESCRIPTION, EXAMPLES)
    options.add_argument(
        "--wait",
        metavar="DURATION",
        type=duration,
        default=0,
        help="wait this long, such as 60s or 5m, until ranks can report (default: look once)",
    )
    options.add_argument(
        "--require-scrape",
        action="store_true",
        help="fail if nobody has fetched /metrics in the last 5 minutes, instead of a warning",
    )
    options.add_argument("--json", action="store_true", help="print one JSON document")
    return options


def run(arguments: Sequence[str]) -> int:
    """Print what was found; return 0 if ranks can report, else 1. Raises WrongCommand."""
    options = parser().parse_args(arguments)
    found = check(os.environ, options.wait, options.require_scrape)
    print(as_document("check", found) if options.json else "\n".join(_lines(found)))
    return 0 if found["ok"] else 1


def check(
    environment: Mapping[str, str], wait_seconds: float = 0.0, require_scrape: bool = False
) -> dict[str, Any]:
    """Return the findings as --json prints them; retry up to *wait_seconds* if that may help."""
    give_up = time.monotonic() + wait_seconds
    said = ""
    while True:
        found, may_pass = _look(environment, require_scrape)
        left = give_up - time.monotonic()
        if not may_pass or left <= 0:
            return found
        if found["problem"] != said:
            said = found["problem"]
            sys.stderr.write(f"rank-probe: waiting for up to {left:.0f} s: {said}\n")
        time.sleep(min(POLL_SECONDS, left))


def _look(environment: Mapping[str, str], require_scrape: bool) -> tuple[dict[str, Any], bool]:
    """Return what is found now, and whether waiting may help."""
    known = identity.with_namespace(environment)
    endpoint = known.get("RANKSKEW_EXPORTER") or DEFAULT_ENDPOINT
    me = identity.from_environment(known)
    answer, problem = None, None
    try:
        if (path := socket_path(endpoint)) is not None:
            _require_socket(path)
        answer = dry_run(endpoint, first_snapshot(known, me), known)
        if answer.reason is not None:
            sentence = f"the exporter would refuse this rank: {answer.reason.rstrip('.')}"
            raise CannotReport(sentence, answer.result in PASSING_RESULTS)
        if require_scrape and not answer.is_scraped:
            raise CannotReport(NOBODY_SCRAPES, may_pass=True)
    except CannotReport as found:
        problem = found
    document = {
        "ok": problem is None,
        "problem": None if problem is None else str(problem),
        "warnings": list(_warnings(known, answer, require_scrape)),
        "probe": {"version": __version__},
        "job": {"job_id": identity.job_id(known), "source": identity.job_id_source(known)},
        "rank": me
        and {
            "source": identity.rank_source(known),
            **{name: getattr(me, name) for name in ("rank", "world_size", "attempt", "peer_group")},
        },
        "endpoint": endpoint,
        "exporter": answer
        and {
            "would_accept": answer.reason is None,
            **{name: value for name, value in answer._asdict().items() if name != "no_join"},
        },
    }
    return document, problem is not None and problem.may_pass


def _require_socket(path: str) -> None:
    """Raise CannotReport unless *path* is a socket that this user may write to."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise CannotReport(
            f"there is no socket {path} ({error.strerror}): start an exporter with: rankskew "
            "exporter; in a container, mount the directory of the exporter's socket",
            may_pass=isinstance(error, FileNotFoundError),
        ) from error
    if not stat.S_ISSOCK(mode):
        raise CannotReport(f"{path} is not a socket: set RANKSKEW_EXPORTER to the exporter's")
    if not os.access(path, os.W_OK):
        raise CannotReport(
            f"user {os.getuid()} may not write to {path} (mode {stat.S_IMODE(mode):04o}): start "
            "the exporter with --ingest.socket-mode=0666, or add the user to its group"
        )


def first_snapshot(environment: Mapping[str, str], me: Identity | None) -> Snapshot:
    """Return the first snapshot of rank *me*; of rank 0 if the environment names no rank."""
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
        stage=STAGES[OTHER],
        stage_elapsed_seconds=0.0,
    )


def dry_run(endpoint: str, snapshot: Snapshot, environment: Mapping[str, str]) -> DryRunAnswer:
    """Return what the exporter at *endpoint* says; raises CannotReport if none answers."""
    try:
        reply = ask(
            endpoint,
            "POST",
            DRY_RUN_PATH,
            snapshot.to_json(),
            token_file=environment.get("RANKSKEW_TOKEN_FILE", ""),
            timeout_seconds=TIMEOUT_SECONDS,
        )
    except NoEndpoint as error:
        raise CannotReport(str(error)) from error
    except OSError as error:
        why = f"nothing answers at {endpoint} ({error.strerror or error})"
        raise CannotReport(
            f"{why}: start an exporter with: rankskew exporter", may_pass=True
        ) from error
    except (OverflowError, ValueError, http.client.HTTPException) as error:
        why = type(error).__name__
        raise CannotReport(f"RANKSKEW_EXPORTER={endpoint} cannot be asked: {why}") from error
    content = reply.json_object()
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return _understood(content)  # With any status: it is the one that a push would get.
    said = content.get("error")
    if reply.status in REFUSALS and isinstance(said, str):
        raise CannotReport(f"the exporter refuses: {said.rstrip('.')}", REFUSALS[reply.status])
    raise CannotReport(
        f"what listens at {endpoint} is not where ranks report: it answers {reply.status}; set "
        f"RANKSKEW_EXPORTER to the exporter's --ingest.socket, by default {DEFAULT_ENDPOINT}"
    )


def _understood(content: Mapping[str, Any]) -> DryRunAnswer:
    return DryRunAnswer(
        version=str(content["version"]),
        result=str(content["result"]),
        reason=None if content["would_accept"] else str(content["reason"]),
        unknown_fields=int(content["unknown_fields"]),
        scraped=[
            {"address": str(one["address"]), "agent": str(one["agent"])}
            | {"seconds_ago": float(one["seconds_ago"])}
            for one in content["scraped"]
        ],
        no_join=str(content.get("no_join", "")),
    )


def _warnings(
    environment: Mapping[str, str], answer: DryRunAnswer | None, require_scrape: bool
) -> Iterator[str]:
    if environment.get("RANK_PROBE") == "0":
        yield "RANK_PROBE=0 turns the probe off here: no rank will report"
    obstacle = OFF if environment.get("RANK_PROBE_JOIN") == "0" else answer and answer.no_join
    if obstacle:  # Obstacles in the process group itself show only at run time.
        yield (
            f"the ranks of job {identity.job_id(environment)!r} do not compare their steps: "
            f"{why_not_joined(obstacle)}; the exporter of each node compares its own ranks"
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
    if not require_scrape and not answer.is_scraped:
        yield NOBODY_SCRAPES


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each thing that was found; the last one says whether ranks can report."""
    job, me, answer = found["job"], found["rank"], found["exporter"]
    yield f"probe: rankskew {__version__}"
    yield f"job: {job['job_id']!r}, from {job['source']}"
    yield (
        f"rank: {me['rank']} of {me['world_size']} in job {job['job_id']!r}, attempt "
        f"{me['attempt']}, from {me['source']}"
        if me
        else "rank: not set in the environment (torchrun, SLURM and MPI set it)"
    )
    if answer is not None:
        accepts = "accepts" if answer["would_accept"] else "refuses"
        yield f"exporter: rankskew {answer['version']} at {found['endpoint']} {accepts} this rank"
        for one in answer["scraped"]:
            agent = f" ({one['agent']})" if one["agent"] else ""
            yield f"scraped: by {one['address']}{agent} {one['seconds_ago']:.0f} s ago"
    yield from (f"warning: {warning}" for warning in found["warnings"])
    yield "ok: ranks can report" if found["ok"] else f"problem: {found['problem']}"
