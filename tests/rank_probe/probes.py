"""A probe of rank 2 of 4, and what it tells."""

from rank_probe.probe import Probe
from rank_probe.wire.snapshot import Snapshot

RANK_2_OF_4 = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "RANKSKEW_JOB_ID": "j"}


def told(probe: Probe) -> Snapshot:
    snapshot = probe.snapshot()
    assert snapshot is not None
    return snapshot


def probe_of_rank_2(*, automatic: bool = False, **environment: str) -> Probe:
    return Probe(automatic=automatic, environment=RANK_2_OF_4 | environment)
