"""Facts: what a rank knows of itself that late ranks may have in common, and the user's labels."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rank_probe.guest.imports import imported
from rank_probe.process.runtime import DRIVER_VERSION, driver_version
from rank_probe.wire.text import printable

LABELS: Final = "RANK_PROBE_LABELS"
MOST_LABELS, MOST_NAME, MOST_VALUE = 8, 32, 96
# Where container runtimes say what runs: Apptainer, Slurm, and NVIDIA's images themselves.
_IMAGE: Final = (
    "APPTAINER_CONTAINER",
    "SINGULARITY_CONTAINER",
    "SLURM_CONTAINER",
    "NVIDIA_PYTORCH_VERSION",
)
_NAME: Final = re.compile(rf"[A-Za-z_][\w.-]{{0,{MOST_NAME - 1}}}", re.ASCII)
# What the exporter reports about its rank: place, cause if late, and position if stuck in a step.
WHEREABOUTS: Final = (
    *("node", "page", "cause", "detail", "share", "sentence", "first_action"),
    *("stage", "seconds", "steps", "line", "state"),
)
LONGEST_TEXT: Final = 256
_NUMBER: Final = re.compile(r"\d{1,9}(\.\d{1,20})?", re.ASCII)
# Of the facts of a rank: all that it can say, as JSON, with room for names in any script.
_MOST_BYTES: Final = 16_384


def own_facts(
    environment: Mapping[str, str], gpu_model: str, pcie: str, driver: Path = DRIVER_VERSION
) -> dict[str, str]:
    """Return by name what is known of this rank, on a GPU of *gpu_model* at *pcie*; reads a file.

    A label of the user's takes the place of a fact with its name.
    """
    torch = imported("torch")
    known = {
        "node": os.uname().nodename,
        "GPU model": gpu_model,
        "PCIe": pcie,
        "driver": driver_version(driver),
        "image": next((said for name in _IMAGE if (said := environment.get(name))), ""),
        "torch": "" if torch is None else str(torch.__version__),
        **labels(environment),
    }
    return {name: each for name, each in known.items() if _is_value(each)}


def labels(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the first MOST_LABELS valid labels in RANK_PROBE_LABELS (`rack=r12,switch=s3`)."""
    known: dict[str, str] = {}
    for name, value in _pairs(environment):
        if _NAME.fullmatch(name) and _is_value(value) and len(known) < MOST_LABELS:
            known.setdefault(name, value)
    return known


def wrong_labels(environment: Mapping[str, str]) -> list[str]:
    """Return what `labels` leaves out, as it was written."""
    known = labels(environment).items()
    return [f"{name}={value}" for name, value in _pairs(environment) if (name, value) not in known]


def message(facts: Mapping[str, Any]) -> bytes:
    """Return *facts* as they travel, `at` with the WHEREABOUTS of the rank."""
    return json.dumps(facts, separators=(",", ":")).encode()


def read_facts(said: bytes) -> dict[str, str]:
    """Return the facts in a message that another rank *said*; empty if it is none."""
    return {
        name: each
        for name, each in _read(said).items()
        if len(name) <= MOST_NAME and name.isprintable() and _is_value(each)
    }


def read_whereabouts(said: bytes) -> dict[str, str]:
    """Return where another rank *said* that it is; an older release knows the node's own name."""
    facts = _read(said)
    at = facts.get("at")
    known = {"node": facts.get("node", ""), **(at if isinstance(at, dict) else {})}
    texts = {name: printable(str(known.get(name, "")), LONGEST_TEXT) for name in WHEREABOUTS}
    return {name: each for name, each in texts.items() if each}


def number(text: str) -> float:
    """Return the number in a *text* that another rank said, 0 if there is none."""
    return float(text) if _NUMBER.fullmatch(text) else 0.0


def _read(said: bytes) -> dict[str, Any]:
    try:
        found: Any = json.loads(said) if len(said) <= _MOST_BYTES else None
    except (ValueError, RecursionError):  # Not of this version, or of no rank at all.
        return {}
    return found if isinstance(found, dict) else {}


def _pairs(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    parts = [each.partition("=") for each in environment.get(LABELS, "").split(",") if each.strip()]
    return [(name.strip(), value.strip()) for name, _, value in parts]


def _is_value(said: object) -> bool:
    return isinstance(said, str) and 0 < len(said) <= MOST_VALUE and said.isprintable()
