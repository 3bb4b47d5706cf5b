"""What a health check costs each time Docker starts it, beside the exporter in the same 15 s.

Each way to ask runs in turn, with and without success: CPU of the process, user and system.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from benchmarks.report import median_interval, write
from benchmarks.scrape.load import Family, pushing, scrape
from devstack.parts import ROOT, ExporterProcess
from devstack.process import StackError

CHECK: Final = ROOT / "deploy" / "image" / "health_check.py"
INTERVAL_SECONDS: Final = 15.0
ROUNDS: Final = 50
IDLE_INTERVALS: Final = 4

OURS: Final = "the image's: Python without its site packages, over the socket"
URLLIB: Final = (
    "import urllib.request as r, sys; r.urlopen(f'http://{sys.argv[1]}/-/healthy', timeout=4)"
)
BASH: Final = (
    'exec 3<>/dev/tcp/${0/:/\\/}; printf "GET /-/healthy HTTP/1.0\\r\\n\\r\\n" >&3; '
    'read -r -t 4 _ status _ <&3; [ "$status" = 200 ]'
)
PERL: Final = (
    "use Socket; socket(S, AF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un($ARGV[0])) or die;"
    'syswrite(S, "GET /-/healthy HTTP/1.0\\r\\n\\r\\n"); sysread(S, $a, 99); exit($a !~ / 200 /)'
)
C: Final = """
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(int n, char **words) {
    struct sockaddr_un place = {AF_UNIX};
    const char *ask = "GET /-/healthy HTTP/1.0\\r\\n\\r\\n";
    char said[99] = "";
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    strncpy(place.sun_path, words[1], sizeof place.sun_path - 1);
    if (connect(s, (struct sockaddr *)&place, sizeof place)) return 1;
    return write(s, ask, strlen(ask)) < 0 || read(s, said, 98) < 0 || !strstr(said, " 200 ");
}
"""


def ways(exporter: ExporterProcess, directory: Path) -> dict[str, list[str]]:
    """Return the command of each way to ask whether *exporter* is healthy."""
    socket = str(exporter.socket.parent / "operator.sock")
    found = {
        "Python with urllib, over HTTP": [sys.executable, "-c", URLLIB, exporter.address],
        OURS: [sys.executable, "-I", "-S", str(CHECK), socket],
    }
    if (perl := shutil.which("perl")) is not None:
        found["Perl, over the socket"] = [perl, "-e", PERL, socket]
    if (bash := shutil.which("bash")) is not None:
        found["bash, over plain HTTP only"] = [bash, "-c", BASH, exporter.address]
    if (compiler := shutil.which("cc")) is not None:
        program = directory / "check"
        subprocess.run(
            [compiler, "-O2", "-x", "c", "-", "-o", program], input=C, text=True, check=True
        )
        found["a compiled program, over the socket"] = [str(program), socket]
    return found


def cpu_milliseconds(command: Sequence[str]) -> float:
    """Run *command*; return what it used, user and system. Raises StackError if it fails."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, devnull, 1)]
        pid = os.posix_spawn(command[0], list(command), os.environ, file_actions=actions)
    finally:
        os.close(devnull)
    _, status, used = os.wait4(pid, 0)
    if status != 0:
        raise StackError(f"{' '.join(command[:2])} says that a healthy exporter is not")
    return (used.ru_utime + used.ru_stime) * 1e3


def side_by_side(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, list[float]]:
    """Return the CPU milliseconds of each of *rounds* runs, by way."""
    used: dict[str, list[float]] = {way: [] for way in commands}
    for _ in range(rounds):
        for way, command in commands.items():
            used[way].append(cpu_milliseconds(command))
    return used


def used_by_the_exporter(exporter: ExporterProcess, intervals: int, seconds: float) -> list[float]:
    """Return the CPU milliseconds of the exporter and its child in each interval, a scrape each."""
    family, used = Family(exporter), []
    for _ in range(intervals):
        before = sum(family.cpu_seconds().values())
        time.sleep(seconds)
        scrape(exporter.address)
        used.append((sum(family.cpu_seconds().values()) - before) * 1e3)
    return used


def measure(
    directory: Path,
    rounds: int = ROUNDS,
    intervals: int = IDLE_INTERVALS,
    seconds: float = INTERVAL_SECONDS,
) -> list[dict[str, Any]]:
    """Return a row for each way, the costliest first, and for the exporter."""
    with ExporterProcess(directory) as exporter:
        runs = side_by_side(ways(exporter, directory), rounds)
        rows: list[dict[str, Any]] = [
            {"what": way, "runs": rounds, **median_interval(runs[way])} for way in runs
        ]
        rows.sort(key=lambda row: -float(row["median"]))
        for load in ("without a rank", "with 8 ranks"):
            with nullcontext() if load == "without a rank" else pushing(exporter):
                used = used_by_the_exporter(exporter, intervals, seconds)
            what = f"the exporter in {seconds:g} s, a scrape included, {load}"
            ends = {"95 % from": None, "95 % to": None}
            rows.append(
                {"what": what, "runs": intervals, "median": statistics.median(used), **ends}
            )
    return rows


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        write("health_check", measure(Path(directory)))


if __name__ == "__main__":
    main()
