"""`rankskew control --profile`: traces of a late rank and a healthy one, and what they say."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from exporter.errors import FAILED, StartError
from exporter.operator import client
from exporter.operator.orders import FAR_AHEAD_SECONDS, ProfileOrder
from exporter.profiles.compare import as_text, sentence
from exporter.profiles.trace import read_trace
from rank_probe.wire.document import as_document

# In what a rank says that hears of its step after it.
TOO_LATE: Final = "was over"
POLL_SECONDS: Final = 0.5
# Twice what a rank alone is given: its steps may take longer than before.
MOST_SECONDS: Final = 2 * FAR_AHEAD_SECONDS
ELSEWHERE: Final = """\
no healthy rank of its peer group {0!r} is here; within {1:.0f} s, run on the node of one
  rankskew control --profile {2.job_id} PEER --start {2.start} --steps {2.steps}
then rankskew diagnose --profiles, with both files"""


def profile(order: ProfileOrder, endpoint: str, *, as_json: bool) -> int:
    """Order a profile, wait for it, print paths and comparison; 2 if a trace is missing."""
    answer = client.profile(order, endpoint)
    given = replace(order, rank=answer["rank"], peer=answer["peer"], start=answer["start"])
    ranks = [str(rank) for rank in (given.rank, given.peer) if rank is not None]
    if not as_json:
        print(f"rank {' and '.join(ranks)}: {given.steps} steps from step {given.start} on")
        if given.peer is None and order.start is None:
            print(ELSEWHERE.format(answer["peer_group"], FAR_AHEAD_SECONDS, given), flush=True)
    said = _wait(given, ranks, endpoint)
    paths = [Path(said[rank]["path"]) for rank in ranks if said[rank]["path"]]
    is_late = any(TOO_LATE in said[rank]["problem"] for rank in ranks)
    if is_late and order.start is None and order.ahead_seconds < FAR_AHEAD_SECONDS:
        # Its steps take less time than the mean of all of them: the first ones were slow.
        return profile(
            replace(order, ahead_seconds=4 * order.ahead_seconds), endpoint, as_json=as_json
        )
    traces = [read_trace(path) for path in paths] if len(paths) == 2 else None
    if as_json:
        found = sentence(*traces) if traces else None
        print(
            as_document(
                "control-profile", {"start": given.start, "profiles": said, "sentence": found}
            )
        )
    else:
        for rank in ranks:
            print(f"rank {rank}: {said[rank]['path'] or 'no trace: ' + said[rank]['problem']}")
        if traces:
            print("", as_text(*traces), sep="\n")
    return FAILED if len(paths) < len(ranks) else 0


def _wait(order: ProfileOrder, ranks: list[str], endpoint: str) -> Mapping[str, dict[str, str]]:
    """Return what the *ranks* say once each has ended its profile; raises StartError."""
    until = time.monotonic() + MOST_SECONDS
    while time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        said: Mapping[str, dict[str, str]] = client.profile(order, endpoint)["profiles"]
        if all(rank in said and (said[rank]["path"] or said[rank]["problem"]) for rank in ranks):
            return said
    raise StartError(
        f"no end of the profile after {MOST_SECONDS:.0f} s: the job stands still or has become "
        "slower, or its probe is of an earlier release"
    )
