"""Have torch write the dumps of four gloo ranks, for a test or as fixtures.

`python -m tests.rankskew.flight_recorder.gloo_dumps` writes the fixtures again, with short paths.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.exporter.running import ROOT

FIXTURES = ROOT / "tests" / "fixtures" / "flight_recorder"
CASES = ("missing", "size", "type", "fine")
MODULE = "tests.rankskew.flight_recorder.gloo_job"


def record(case: str, folder: Path) -> None:
    """Run *case* on four ranks, each of which dumps into *folder*."""
    for form in ("pickle", "json"):
        (folder / form).mkdir(parents=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    environment = os.environ | {
        "TORCH_FR_BUFFER_SIZE": "100",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    # Its status says nothing: gloo aborts ranks whose peers are gone.
    subprocess.run(
        [*torchrun, "-m", MODULE, case, str(folder)],
        env=environment,
        capture_output=True,
        timeout=90,
        check=False,
    )


def shorten(file: Path) -> None:
    """Leave out of a pickle where this machine has its files; torch wrote all else."""
    dump: dict[str, Any] = pickle.loads(file.read_bytes())  # We have just written it.
    for entry in dump["entries"]:
        for frame in entry.get("frames", ()):
            inside = frame["filename"].partition("/site-packages/")[2]
            own = frame["filename"].replace(str(ROOT), "/repo")
            frame["filename"] = f"/venv/site-packages/{inside}" if inside else own
    file.write_bytes(pickle.dumps(dump, protocol=2))


def main() -> None:
    """Write the fixtures."""
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            record(case, Path(folder) / case)
            for file in (Path(folder) / case / "pickle").iterdir():
                shorten(file)
                target = FIXTURES / case / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())


if __name__ == "__main__":
    main()
