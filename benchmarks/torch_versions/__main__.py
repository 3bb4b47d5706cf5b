"""The probe on other releases of torch: ways to train, the join, and its tests that need torch.

    python -m benchmarks.torch_versions 2.4 2.8/3.12 [--folder .torch] [--remove] [--only WHAT]...

Each release, on the Python behind its slash or on this one, gets an environment in the folder,
which is kept for the next time unless --remove is given. What was run before is kept too.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.report import Row, last, write
from benchmarks.torch_versions.environment import ROOT, Release, python_of, remove
from benchmarks.torch_versions.tables import versions
from rank_probe.torch_hooks.private import minor

NAME: Final = "torch_versions"
FOLDER: Final = ROOT / ".torch"


def run(release: Release, folder: Path, only: Sequence[str], write: Callable[[Row], None]) -> None:
    """Write a row for each case that *release* runs, as soon as it is there."""
    python = python_of(release, folder)
    options = [part for name in only for part in ("--only", name)]
    inside = [str(python), "-m", "benchmarks.torch_versions.inside", *options]
    with subprocess.Popen(inside, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            write(json.loads(line))
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, inside)


def merged(rows: Sequence[Row], new: Row) -> list[Row]:
    """Return *rows* with *new* in the place of what was run before on that torch and Python."""
    return sorted([row for row in rows if _key(row) != _key(new)] + [new], key=_release)


def _key(row: Row) -> tuple[object, ...]:
    return *_release(row), row["what"]


def _release(row: Row) -> tuple[tuple[int, int], tuple[int, int]]:
    return minor(row["torch"]), minor(row["python"])


def _write(row: Row) -> None:
    write(NAME, merged(last(NAME), row), tables={NAME: versions})


def main() -> int:
    """Run the releases one after the other; return 1 if one could not be had."""
    parser = argparse.ArgumentParser(description="Does the probe work on these releases of torch?")
    parser.add_argument("releases", nargs="+", type=Release.of)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where environments are kept")
    parser.add_argument("--remove", action="store_true", help="each environment after its run")
    parser.add_argument("--only", action="append", default=[])
    options = parser.parse_args()
    failed = 0
    for release in options.releases:
        try:
            run(release, options.folder.absolute(), options.only, _write)
        except (LookupError, subprocess.CalledProcessError) as error:
            print(f"torch {release.torch} was not run: {error}", file=sys.stderr)
            failed = 1
        if options.remove:
            remove(release, options.folder)
    return failed


if __name__ == "__main__":
    sys.exit(main())
