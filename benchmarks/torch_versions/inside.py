"""What runs in one of the environments: the ways to train, the join, the tests that need torch.

python -m benchmarks.torch_versions.inside [--only WHAT]...
"""

import argparse
import functools
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from benchmarks.report import Row
from benchmarks.torch_versions import JOIN, TESTS
from benchmarks.ways import ARMS, Arm, measure
from tests.rank_probe.launch import ATTEMPTS, ROOT, RUN_SECONDS, run
from tests.rank_probe.torch_hooks.parallel_job import PLACES

RANKS, LATE_RANK, LATE_STAGE = 4, 2, "data"
JOB: Final = (
    *("-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"),
    *("-m", "rank_probe", "demo/train.py"),
    *("--fault", LATE_STAGE, "--fault-rank", str(LATE_RANK)),
    *("--seconds", "45", "--step-seconds", "0.1", "--delay", "0.08"),
)
# The package whose release matters to a way to train.
FRAMEWORKS: Final = {
    "Lightning": "lightning",
    "Hugging Face Trainer": "transformers",
    "Accelerate": "accelerate",
    "Ray Train": "ray",
}
ROOMS: Final = tuple(f"tests/rank_probe/{room}" for room in ("torch_hooks", "measure", "join"))


def way(arm: Arm) -> Row:
    """Return in how many places of the delay rank and stage were named."""
    found = measure(arm)
    missed = [each for each in found if not each["named"]]
    said = "; ".join(
        f"{each['in']}: rank {each['waits least']} in {each['furthest ahead in']}"
        for each in missed
    )
    return _row(arm.name, len(found) - len(missed), len(found), said)


def join() -> Row:
    """Return whether the verdict of a torchrun job's join, on every rank, names who is late."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = run(Path(folder), JOB, RANKSKEW_JOB_ID="late")["late"]
    told = [_named(snapshot) for snapshot in ranks.values()]
    wrong = [each for each in told if each != f"rank {LATE_RANK} in {LATE_STAGE}"]
    return _row(JOIN, len(told) - len(wrong), len(told), "; ".join(wrong))


def _named(snapshot: dict[str, Any]) -> str:
    verdict = snapshot["verdict"]
    if verdict is None:
        return "no verdict"
    late = (f"rank {each['rank']} in {each['stage']}" for each in verdict["late"])
    return ", ".join(late) or verdict["reason"] or "nobody"


def tests() -> Row:
    """Return how many unit tests of the rooms that need only torch pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ROOMS]
    # What is deprecated in this torch is no failure of the probe.
    command += ["-m", "not (jobs or e2e or nightly)", "-o", "filterwarnings=default"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    print(output[-6000:], file=sys.stderr)
    counts = {what: int(number) for number, what in re.findall(r"(\d+) (\w+)", _last(output))}
    failed = re.findall(r"^(?:FAILED|ERROR) \S*?(\w+\.py\S*)", output, re.MULTILINE)
    passed = counts.get("passed", 0)
    return _row(TESTS, passed, passed + len(failed), "; ".join(failed))


def _row(what: str, right: int, of: int, differs: str) -> Row:
    return {"what": what, "right": right, "of": of, "differs": differs}


def _last_line(error: BaseException) -> str:
    """Return what a job that failed said last of its own error."""
    errors = re.findall(r"^(?:\[rank\d+\]: ?)?(\w*(?:Error|Exception): .+)$", str(error), re.M)
    return str(errors[0] if errors else _last(str(error)) or type(error).__name__)[:200]


def _last(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


# What is run, and of how many.
CASES: Final[dict[str, tuple[Callable[[], Row], int]]] = {
    JOIN: (join, RANKS),
    TESTS: (tests, 0),
    **{arm.name: (functools.partial(way, arm), len(PLACES)) for arm in ARMS},
}


def all_rows(only: list[str]) -> Iterator[Row]:
    """Yield a row for each case, as soon as it is known; a miss is tried again."""
    for name, (case, of) in CASES.items():
        if not only or name in only:
            yield best_of_some(name, case, of)


def best_of_some(name: str, case: Callable[[], Row], of: int) -> Row:
    """Run *case* until nothing is missed: a busy machine holds ranks up, but not each time.

    What does not run without the probe either is no miss: of 0.
    """
    rows: list[Row] = []
    while len(rows) < ATTEMPTS and not (rows and rows[-1]["right"] == rows[-1]["of"] > 0):
        os.environ["PET_MASTER_PORT"] = str(_free_port())  # torchrun takes its options there too.
        try:
            rows.append(case())
        except (AssertionError, KeyError, subprocess.TimeoutExpired) as error:
            if isinstance(error, subprocess.TimeoutExpired):
                said = f"not done after {RUN_SECONDS} s"
            else:
                said = _last_line(error)
            if not isinstance(error, KeyError) and not runs_without_probe(case):
                return _row(name, 0, 0, f"does not run, nor without the probe: {said}")
            rows.append(_row(name, 0, of, f"does not run: {said}"))
    return max(rows, key=lambda row: int(row["right"]))


def runs_without_probe(case: Callable[[], Row]) -> bool:
    """Whether the ranks of *case* train to their end with the probe off; they report nothing."""
    os.environ["RANK_PROBE"] = "0"
    try:
        case()
    except KeyError:
        return True
    except (AssertionError, subprocess.TimeoutExpired):
        return False
    finally:
        del os.environ["RANK_PROBE"]
    raise AssertionError("ranks reported with the probe off")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def identity(what: str) -> Row:
    """Return the releases that a row is about."""
    framework = FRAMEWORKS.get(what)
    return {
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "with": f"{framework} {_version(framework)}" if framework else "",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def main() -> None:
    """Print a line of JSON for each case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[], choices=list(CASES))
    options = parser.parse_args()
    for row in all_rows(options.only):
        print(json.dumps(identity(row["what"]) | row), flush=True)


if __name__ == "__main__":
    main()
