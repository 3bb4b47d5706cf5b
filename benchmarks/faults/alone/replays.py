"""Snapshots that arrive twice, out of order, or from a process that was replaced."""

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.faults.alone.pushing import page_steps
from benchmarks.report import Row, row
from benchmarks.scrape.load import RANK, Rank
from devstack.parts import ExporterProcess
from rank_probe.report.endpoint import open_connection
from rank_probe.wire.snapshot import SNAPSHOT_PATH, Snapshot

# How far a snapshot may be overtaken.
LATE_BY: Final = 40


def disorder(snapshots: int, seed: int) -> list[Snapshot]:
    """Return *snapshots* of a rank and as many of its successor, each twice, many out of order."""
    draw = random.Random(seed)
    first = Rank(0)
    of_first = [first() for _ in range(snapshots)]
    second = replace(RANK, started_timestamp_seconds=RANK.started_timestamp_seconds + 60)
    of_second = [
        replace(second, sequence=number, steps=10 * number) for number in range(1, snapshots + 1)
    ]
    sent = [*of_first, *of_second]
    place = {id(each): number for number, each in enumerate(sent)}
    return sorted(2 * sent, key=lambda each: place[id(each)] + draw.uniform(0, LATE_BY))


def replayed(directory: Path, snapshots: int = 200, seed: int = 1) -> list[Row]:
    """Push them one by one, and look at the page after each."""
    answers: Counter[int] = Counter()
    shown: list[float] = []
    with ExporterProcess(directory, flags=["--path.state="]) as exporter:
        connection = open_connection(exporter.target)
        for snapshot in disorder(snapshots, seed):
            connection.request("POST", SNAPSHOT_PATH, snapshot.to_json())
            answer = connection.getresponse()
            answer.read()
            answers[answer.status] += 1
            shown.append(page_steps(exporter)[0])
        connection.close()
    falls = sum(after < before for before, after in pairwise(shown))
    return [
        row("pushes twice and out of order", sum(answers.values())),
        row("of these refused, by a process that was replaced", answers[409]),
        row("of these answered otherwise", sum(answers.values()) - answers[409] - answers[200], 0),
        row("times that the counter fell but for the restart", falls - 1, 0),
        row("last counter is not the last counted", int(shown[-1] != 10 * snapshots), 0),
    ]
