"""Dumps as the NCCL backend writes them.

No GPU wrote these. The fields and their values are those documented in torch 2.13:
torch/distributed/flight_recorder/components/builder.py (entries, pg_config) and types.py (states,
names of operations), and the flight recorder tutorial of the PyTorch documentation.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# What torch wrote on gloo ranks; gloo_dumps writes them again.
FIXTURES = Path(__file__).parents[2] / "fixtures" / "flight_recorder"
WORLD = ("0", "default_pg")
TRAINER = {"name": "train", "filename": "/job/train.py", "line": 88}
INSIDE = {
    "name": "all_reduce",
    "filename": "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
    "line": 3245,
}


def entry(number: int, state: str = "completed", **changes: Any) -> dict[str, Any]:
    """Return one operation; number 7 is `collective_seq_id` 7, or `p2p_seq_id` 7 of a transfer."""
    usual = {
        "record_id": number,
        "pg_id": 0,
        "process_group": WORLD,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000 + number,
        "input_sizes": [[1024]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[1024]],
        "output_dtypes": ["BFloat16"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [INSIDE, TRAINER],
    }
    return usual | changes


def transfer(number: int, name: str, state: str, group: tuple[str, str]) -> dict[str, Any]:
    numbers = {"collective_seq_id": 0, "p2p_seq_id": number, "is_p2p": True}
    return entry(number, state, profiling_name=f"nccl:{name}", process_group=group, **numbers)


def write(
    folder: Path,
    ranks: Mapping[int, Sequence[Mapping[str, Any]]],
    groups: Mapping[str, tuple[str, Sequence[int]]] | None = None,
) -> Path:
    """Write a dump for each of *ranks*; *groups* are the description and ranks of each, by name."""
    folder.mkdir(exist_ok=True)
    named = groups or {"0": ("default_pg", sorted(ranks))}
    config = {
        name: {"name": name, "desc": description, "ranks": str(list(members))}
        for name, (description, members) in named.items()
    }
    for rank, entries in ranks.items():
        mine = {name: each for name, each in config.items() if rank in named[name][1]}
        dump = {"version": "2.10", "pg_config": mine, "pg_status": {}, "entries": list(entries)}
        (folder / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump))
    return folder
