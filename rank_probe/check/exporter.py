"""Asks what answers at an endpoint whether it would accept a snapshot, and who scrapes it."""

import http.client
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rank_probe.check.problem import CannotReport
from rank_probe.report.endpoint import DEFAULT_ENDPOINT, NoEndpoint, Reply, ask
from rank_probe.version import __version__
from rank_probe.wire.snapshot import DRY_RUN_PATH, Snapshot
from rank_probe.wire.text import printable

# A busy exporter answers in milliseconds; a node that starts may take a little longer.
TIMEOUT_SECONDS: Final = 2.0
SERVER_CHARACTERS: Final = 64
DESCRIPTION_PATH: Final = "/openapi.json"
# The titles of the descriptions of its three listeners.
INGEST, WEB, OPERATOR = "rankskew ingest", "rankskew exporter", "rankskew operator"
# Another job, or the last run of this one, may be about to end.
PASSING_RESULTS: Final = ("no_room", "forbidden", "superseded")


@dataclass(frozen=True, slots=True)
class LastScraper:
    """Who fetched /metrics, and how long ago."""

    address: str
    agent: str
    seconds_ago: float


@dataclass(frozen=True, slots=True)
class Running:
    """A job with *ranks* that push to the exporter now, on GPUs as far as known.

    *job_id* is empty for a job of another user. *no_join* is why they do not compare their steps,
    one of wire.no_join; empty if they do.
    """

    job_id: str
    ranks: int
    gpu_uuids: tuple[str, ...]
    no_join: str = ""


@dataclass(frozen=True, slots=True)
class DryRunAnswer:
    """What an exporter of *version* says about a snapshot; *reason* is why it would refuse it.

    *running* is None if the exporter is too old to say which jobs run.
    """

    version: str
    result: str
    reason: str | None
    unknown_fields: int
    scraped: tuple[LastScraper, ...]
    running: tuple[Running, ...] | None = None

    def require_accepted(self) -> None:
        """Raise Problem if the snapshot would be refused."""
        if self.reason is not None:
            raise CannotReport(
                f"the exporter would refuse this rank: {self.reason.rstrip('.')}",
                may_pass=self.result in PASSING_RESULTS,
            )


def dry_run(endpoint: str, snapshot: Snapshot, environment: Mapping[str, str]) -> DryRunAnswer:
    """Return what the exporter at *endpoint* says; raises Problem if none answers."""
    token_file = environment.get("RANKSKEW_TOKEN_FILE", "")
    reply = _ask(endpoint, "POST", DRY_RUN_PATH, snapshot.to_json(), token_file)
    try:
        return _understood(reply.json_object())  # Whatever its status, which is that of a push.
    except (KeyError, TypeError, ValueError):
        raise _explain(endpoint, reply) from None


def _understood(content: Mapping[str, Any]) -> DryRunAnswer:
    reason = content["reason"]
    return DryRunAnswer(
        version=str(content["version"]),
        result=str(content["result"]),
        reason=None if content["would_accept"] else str(reason),
        unknown_fields=int(content["unknown_fields"]),
        scraped=tuple(
            LastScraper(str(one["address"]), str(one["agent"]), float(one["seconds_ago"]))
            for one in content["scraped"]
        ),
        running=_running(content.get("running")),
    )


def _running(jobs: Sequence[Mapping[str, Any]] | None) -> tuple[Running, ...] | None:
    if jobs is None:
        return None
    return tuple(
        Running(
            str(job["job_id"]),
            int(job["ranks"]),
            tuple(map(str, job["gpu_uuids"])),
            str(job.get("no_join", "")),
        )
        for job in jobs
    )


def _explain(endpoint: str, reply: Reply) -> CannotReport:
    """Return the problem with a *reply* that is no answer to a dry run."""
    said = reply.json_object().get("error")
    sentence = said.rstrip(".") if isinstance(said, str) else f"it answers {reply.status}"
    if reply.status == http.client.SERVICE_UNAVAILABLE and isinstance(said, str):
        return CannotReport(f"the exporter turns this rank away: {sentence}", may_pass=True)
    title, version = _description(endpoint)
    if title == INGEST and reply.status == http.client.NOT_FOUND:
        return CannotReport(
            f"the exporter at {endpoint} is rankskew {version}, which cannot check a rank: upgrade "
            f"it to {__version__}, the version of this probe"
        )
    if title == INGEST:
        too_often = reply.status == http.client.TOO_MANY_REQUESTS
        return CannotReport(f"the exporter refuses: {sentence}", may_pass=too_often)
    if title in (WEB, OPERATOR):
        serves = "its page and its metrics" if title == WEB else "its operator"
        return CannotReport(
            f"{endpoint} is where the exporter serves {serves}, and no rank can report there: set "
            f"RANKSKEW_EXPORTER to its --ingest.socket, by default {DEFAULT_ENDPOINT}"
        )
    name = printable(reply.server, SERVER_CHARACTERS)
    server = f", and calls itself {name}" if name else ""
    return CannotReport(
        f"what listens at {endpoint} is not an exporter: it answers {reply.status} to a rank's "
        f"snapshot{server}; set RANKSKEW_EXPORTER to where the exporter of this node listens"
    )


def _description(endpoint: str) -> tuple[str, str]:
    """Return title and version of the API at *endpoint*, '' if it describes none."""
    try:
        info = _ask(endpoint, "GET", DESCRIPTION_PATH).json_object().get("info")
    except CannotReport:
        return "", ""
    return (
        (str(info.get("title")), str(info.get("version"))) if isinstance(info, dict) else ("", "")
    )


def _ask(
    endpoint: str, method: str, path: str, body: bytes | None = None, token_file: str = ""
) -> Reply:
    try:
        return ask(
            endpoint,
            method,
            path,
            body,
            token_file=token_file,
            timeout_seconds=TIMEOUT_SECONDS,
        )
    except NoEndpoint as error:
        raise CannotReport(str(error)) from error
    except (OSError, OverflowError, ValueError, http.client.HTTPException) as error:
        raise _no_answer(endpoint, error) from error


def _no_answer(endpoint: str, error: Exception) -> CannotReport:
    """Return the problem with an *endpoint* that failed with *error*."""
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return CannotReport(
            f"what listens at {endpoint} is not an exporter: its answer is not HTTP"
        )
    if isinstance(error, TimeoutError):
        why = f"nothing answers at {endpoint} within {TIMEOUT_SECONDS:.0f} s"
        return CannotReport(f"{why}: the exporter there hangs or starts", may_pass=True)
    if isinstance(error, ConnectionRefusedError):
        why = f"nothing listens at {endpoint}"
        return CannotReport(f"{why}: start one with: rankskew exporter", may_pass=True)
    if isinstance(error, OSError):
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else str(error.strerror or error)
        return CannotReport(f"{endpoint} does not answer: {why}", may_pass=True)
    return CannotReport(f"RANKSKEW_EXPORTER={endpoint} cannot be reached: {error}")
