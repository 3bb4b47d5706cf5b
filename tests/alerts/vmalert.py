"""Run the shipped rules in VictoriaMetrics' vmalert, over the series that Prometheus had.

Times are seconds from the begin of the data, as in promtool; a sample of None is the end of its
series, Prometheus' marker of staleness.
"""

import json
import re
import struct
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml

from devstack.process import StackProcess, free_port, get

Labels = frozenset[tuple[str, str]]  # with __name__
Samples = dict[float, float | None]

# VictoriaMetrics holds nothing of 1970, where promtool's time begins.
BEGIN_SECONDS = 1_704_067_200  # 2024-01-01
WINDOW = re.compile(r"((?:_over_time|resets|changes)\([^][()]*)\[(\d+)([smh])\]")
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
STALE_BITS = 0x7FF0000000000002  # the NaN that Prometheus ends a series with


class VictoriaMetrics(StackProcess):
    """A VictoriaMetrics of its own, empty at first, with further *flags*."""

    def __init__(self, directory: Path, *flags: str) -> None:
        directory.mkdir()
        self.url = f"http://127.0.0.1:{free_port()}"
        self.ready_url = f"{self.url}/health"
        command = [
            "victoria-metrics",
            f"-httpListenAddr={self.url.removeprefix('http://')}",
            f"-storageDataPath={directory / 'data'}",
            "-retentionPeriod=100y",
            "-search.disableCache",
            "-search.maxLookback=5m",  # Prometheus' own; vmalert asks for it but in a replay
            "-memory.allowedBytes=256MB",
            "-loggerLevel=WARN",
            *flags,
        ]
        super().__init__("VictoriaMetrics", command, directory / "victoria-metrics.log")

    def write(self, series: Mapping[Labels, Samples]) -> None:
        """Store *series*, so that the next query sees them.

        By remote write, as from Prometheus: no other way in takes markers of staleness.
        """
        request = urllib.request.Request(
            f"{self.url}/api/v1/write", _snappy(_write_request(series))
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request):
            self.flush()

    def flush(self) -> None:
        """Make all that was written visible, which takes a second otherwise."""
        get(f"{self.url}/internal/force_flush")

    def series(self) -> dict[Labels, Samples]:
        """Return everything stored."""
        everything = urllib.parse.urlencode({"match[]": '{__name__!=""}', "start": BEGIN_SECONDS})
        found: dict[Labels, Samples] = {}
        for line in get(f"{self.url}/api/v1/export?{everything}").splitlines():
            one = json.loads(line)
            seconds = [stamp / 1000 - BEGIN_SECONDS for stamp in one["timestamps"]]
            found[frozenset(one["metric"].items())] = dict(zip(seconds, one["values"], strict=True))
        return found


def replayable(rules: Iterable[Path], directory: Path, kind: str = "") -> list[Path]:
    """Write *rules* to *directory* as vmalert can replay and promtool judge them, and return them.

    Without annotations, whose `query` a replay refuses, and without intervals, which promtool
    does not know: it evaluates every group each time. *kind* `alert` keeps alerts and thresholds.
    """
    written = []
    directory.mkdir()
    for path in rules:
        groups = yaml.safe_load(path.read_text())["groups"]
        for group in groups:
            group.pop("interval", None)
            group["rules"] = [
                {key: value for key, value in rule.items() if key != "annotations"}
                for rule in group["rules"]
                if kind in rule or not kind or path.stem == "thresholds"
            ]
        written.append(directory / path.name)
        written[-1].write_text(yaml.safe_dump({"groups": groups}))
    return written


def with_open_windows(rules: Iterable[Path], directory: Path) -> list[Path]:
    """Write *rules* for Prometheus 2.42 so that no sample lies on the edge of a window.

    Prometheus 3.0 and VictoriaMetrics leave out a sample that is as old as the window is long.
    Not what extrapolates: a window that is shorter by a millisecond gives less there.
    """
    written = []
    directory.mkdir()
    for path in rules:
        written.append(directory / path.name)
        written[-1].write_text(WINDOW.sub(_shorter, path.read_text()))
    return written


def _shorter(window: re.Match[str]) -> str:
    seconds = int(window[2]) * UNITS[window[3]]
    return f"{window[1]}[{seconds * 1000 - 1:.0f}ms]"


def vmalert(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run vmalert to its end and return what it said, whether it succeeded or not."""
    return subprocess.run(["vmalert", *arguments], capture_output=True, text=True, check=False)


def replay(
    rules: Sequence[Path],
    read: VictoriaMetrics,
    write: VictoriaMetrics,
    seconds: float,
    interval_seconds: float,
) -> None:
    """Let vmalert evaluate *rules* on what *read* has of *seconds*, and record it in *write*.

    In two places, so that each rule reads what Prometheus recorded: no rule has to wait until
    what the one before it recorded is visible, and one that differs differs alone.
    """
    interval = f"{interval_seconds:g}s"
    done = vmalert(
        *(f"-rule={path}" for path in rules),
        f"-datasource.url={read.url}",
        f"-remoteWrite.url={write.url}",
        f"-replay.timeFrom={_stamp(0)}",
        f"-replay.timeTo={_stamp(seconds)}",
        f"-evaluationInterval={interval}",
        f"-datasource.queryStep={interval}",  # else a replay goes in steps of 5 minutes
        "-replay.rulesDelay=0s",
        "-replay.disableProgressBar",
        "-remoteWrite.flushInterval=100ms",
        "-disableAlertgroupLabel",
        "-loggerLevel=WARN",
        f"-httpListenAddr=127.0.0.1:{free_port()}",
    )
    assert done.returncode == 0, done.stderr
    write.flush()


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(BEGIN_SECONDS + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Prometheus' remote write: snappy around protobuf. A dependency for 30 lines would be too much.


def _write_request(series: Mapping[Labels, Samples]) -> bytes:
    return b"".join(
        _field(1, b"".join([*map(_label, sorted(labels)), *map(_sample, samples.items())]))
        for labels, samples in series.items()
    )


def _label(label: tuple[str, str]) -> bytes:
    return _field(1, b"".join(_field(n, text.encode()) for n, text in enumerate(label, 1)))


def _sample(sample: tuple[float, float | None]) -> bytes:
    seconds, value = sample
    number = struct.pack("<Q", STALE_BITS) if value is None else struct.pack("<d", value)
    milliseconds = round((BEGIN_SECONDS + seconds) * 1000)
    return _field(2, b"\x09" + number + b"\x10" + _varint(milliseconds))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    octets = bytearray()
    while number > 127:
        octets.append(number & 127 | 128)
        number >>= 7
    return bytes([*octets, number])


def _snappy(content: bytes) -> bytes:
    """Return *content* as snappy's block format, uncompressed: literals of up to 64 KiB."""
    blocks = [content[at : at + 65536] for at in range(0, len(content), 65536)]
    literals = [b"\xf4" + struct.pack("<H", len(block) - 1) + block for block in blocks]
    return _varint(len(content)) + b"".join(literals)
