"""Schemathesis against what the exporter says of itself in /openapi.json, where it says anything.

`schemathesis run` makes requests from the description and checks the answers against it. Nothing is
tried where schemathesis is not installed; benchmarks/requirements.txt has it.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError

from benchmarks.hostile.victim import Broken, Victim
from benchmarks.report import row
from devstack.process import free_port, get

DESCRIPTION: Final = "/openapi.json"
EXAMPLES: Final = 200
# That a label must be printable, and a rank below its world's size, no schema can say.
NOT_EXPRESSED: Final = "positive_data_acceptance"
# Bounded whatever the description holds.
MOST_SECONDS: Final = 600


def try_descriptions(directory: Path, seed: int) -> list[dict[str, Any]]:
    """Try both listeners of a new exporter; return a row for each that describes itself."""
    if find_spec("schemathesis") is None:
        print("schemathesis is not installed: the descriptions are not tried")
        return []
    ingest = f"127.0.0.1:{free_port()}"
    rows = []
    with Victim(directory, (f"--ingest.listen-address={ingest}",)) as victim:
        for name, base in (("web", victim.url), ("ingest", f"http://{ingest}")):
            if not _is_described(base):
                print(f"{base}{DESCRIPTION} is not served: the {name} listener is not tried")
                continue
            try_description(base, seed, directory)
            victim.hang_up()  # Idle for so long, its connection was ended meanwhile.
            victim.check_service()
            what = f"examples of each operation, {name} listener (schemathesis)"
            rows.append(row(what, EXAMPLES))
    return rows


def try_description(base: str, seed: int, directory: Path, examples: int = EXAMPLES) -> None:
    """Run schemathesis on the description at *base*; raises Broken with what it found.

    It leaves a cache in *directory*.
    """
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{base}{DESCRIPTION}"]
    command += [f"--max-examples={examples}", f"--seed={seed}", "--no-color"]
    command += [f"--exclude-checks={NOT_EXPRESSED}"]
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise Broken(
            f"schemathesis did not end in {MOST_SECONDS} s: {' '.join(command)}"
        ) from error
    if done.returncode:
        raise Broken(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def _is_described(base: str) -> bool:
    try:
        get(f"{base}{DESCRIPTION}")
    except HTTPError:
        return False
    return True
