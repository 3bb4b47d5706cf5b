"""Starts four ranks that audit two machines made of files, with plants or without."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.audit.plants import GPUS, RANKS, Plant, write_nodes
from devstack.parts import ROOT
from tests import nvmlstub

TIMEOUT_SECONDS = 150.0
# A busy machine imports torch for long, and gives up on nobody.
AUDIT_TIMEOUT = "2m"


class Failed(Exception):
    """The audit printed no document; what it printed instead."""


def launch(folder: Path, library: Path, plants: Sequence[Plant]) -> dict[str, Any]:
    """Return what the audit of a launch with *plants* prints, whose files go into *folder*."""
    write_nodes(folder, plants)
    options = [option for plant in plants for option in plant.options]
    names = ";".join(plant.name for plant in plants)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(RANKS), "-m", "benchmarks.audit.rank"),
            *(str(folder), names, "--timeout", AUDIT_TIMEOUT, *options),
        ],
        cwd=ROOT,
        env=os.environ | nvmlstub.environment(library, GPUS) | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise Failed(f"{done.stdout}\n{done.stderr}") from error
    return document


def troubles(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the worst finding of each check that warned or failed, by check."""
    return {
        check["check"]: check["findings"][0]
        for check in document["checks"]
        if check["status"] in ("fail", "warn")
    }
