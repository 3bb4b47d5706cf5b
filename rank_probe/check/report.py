"""What `rank-probe check` prints: lines for people, or one JSON document."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rank_probe.check.check import Checked
from rank_probe.check.exporter import LastScraper
from rank_probe.version import __version__
from rank_probe.wire.document import as_document


def as_text(found: Checked) -> str:
    """Return a line for each thing that was found; the last one says whether ranks can report."""
    return "\n".join(_lines(found))


def as_json(found: Checked) -> str:
    """Return *found* for scripts; docs/operating.md describes the fields."""
    answer = found.answer
    said: dict[str, Any] = {
        "ok": found.problem is None,
        "problem": None if found.problem is None else str(found.problem),
        "warnings": list(found.warnings),
        "probe": {"version": __version__},
        "torch": found.torch and asdict(found.torch),
        "job": {"job_id": found.job_id, "source": found.job_source},
        "rank": found.rank and _rank(found),
        "endpoint": found.endpoint,
        "socket": found.socket and asdict(found.socket),
        "exporter": None
        if answer is None
        else {
            "version": answer.version,
            "would_accept": answer.reason is None,
            "result": answer.result,
            "reason": answer.reason,
            "unknown_fields": answer.unknown_fields,
            "scraped": [asdict(scraper) for scraper in answer.scraped],
        },
    }
    return as_document("check", said)


def _lines(found: Checked) -> Iterator[str]:
    yield f"probe: rankskew {__version__}"
    if found.torch is not None:
        yield from (f"torch: {line}" for line in found.torch.lines())
    yield f"job: {found.job_id!r}, from {found.job_source}"
    if found.rank is None:
        yield "rank: not set in the environment (torchrun, SLURM and MPI set it)"
    else:
        me = found.rank
        yield (
            f"rank: {me.rank} of {me.world_size} in job {me.job_id!r}, attempt {me.attempt}, "
            f"from {found.rank_source}"
        )
    if found.socket is not None:
        socket = found.socket
        may = "may" if socket.writable else "may not"
        yield (
            f"socket: {socket.path}, mode {socket.mode}, owner {socket.user}, "
            f"group {socket.group}; this user {may} write"
        )
    if found.answer is not None:
        accepts = "accepts" if found.answer.reason is None else "refuses"
        yield f"exporter: rankskew {found.answer.version} at {found.endpoint} {accepts} this rank"
        yield from _scraped(found.answer.scraped)
    yield from (f"warning: {warning}" for warning in found.warnings)
    yield "ok: ranks can report" if found.problem is None else f"problem: {found.problem}"


def _scraped(scrapers: tuple[LastScraper, ...]) -> Iterator[str]:
    for scraper in scrapers:
        agent = f" ({scraper.agent})" if scraper.agent else ""
        yield f"scraped: by {scraper.address}{agent} {scraper.seconds_ago:.0f} s ago"


def _rank(found: Checked) -> dict[str, Any]:
    assert found.rank is not None
    me = asdict(found.rank)
    return {"source": found.rank_source} | {
        name: me[name] for name in ("rank", "world_size", "attempt", "peer_group")
    }
