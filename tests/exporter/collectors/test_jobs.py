"""Each node exposes each job's verdict, once, what its ranks do together, and who is late here."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from exporter.causes.model import Cause
from exporter.collectors.rank.jobs import JobsCollector
from exporter.collectors.rank.late_causes import SENTENCE_CHARACTERS, LateCausesCollector
from exporter.collectors.rank.late_ranks import LateLinesCollector, LateRanksCollector
from exporter.collectors.rank.ranks import RanksCollector
from exporter.collectors.rank.work import RankWorkCollector
from exporter.evidence.late_causes import LateCauses, RankPlace
from rank_probe.wire.snapshot import RUNTIME_INFO_LABELS
from tests.exporter.collectors.host import shown
from tests.exporter.node import PushingNode
from tests.exporter.snapshots import CHANGE, late, verdict

WALL = 1_700_000_000.0


class Node(PushingNode):
    """A node whose wall clock goes with the other; *behind_seconds* is how wrong the ranks' is."""

    def __init__(self, behind_seconds: float = 0.0) -> None:
        super().__init__()
        self._began, self._behind = self.clock.seconds, behind_seconds
        self._jobs = JobsCollector(self.jobs, self.wall)
        self._late = LateRanksCollector(self.jobs, "gpu-12", self.wall)

    def wall(self) -> float:
        return WALL + self.clock.seconds - self._began

    def beat(self, rank: int = 0, after: float = 0.0, **changes: Any) -> None:
        """Let *rank* push after so many seconds; it had run for a minute when the test began."""
        self.clock.seconds += after
        times = {
            "started_timestamp_seconds": self.time(self.clock.seconds - self._began + 60.0),
            "heartbeat_timestamp_seconds": self.time(0.0),
        }
        self.push(**(times | {"rank": rank} | changes))

    def time(self, ago_seconds: float) -> float:
        """Return what the ranks' clock said *ago_seconds* ago."""
        return self.clock.seconds - self._behind - ago_seconds

    def shown(self, start: str) -> dict[str, float]:
        """Return the values of the series of such names, by name and labels, except the job."""
        found = {}
        for line in shown(self._jobs, f"rankskew_{start}"):
            name, value = line.removeprefix("rankskew_").rsplit(" ", 1)
            found[re.sub(r'{job_id="llama"}|job_id="llama",', "", name)] = float(value)
        return found

    def late(self) -> list[str]:
        return shown(self._late)


def states(beating: float, silent: float, finished: float) -> dict[str, float]:
    counts = {"beating": beating, "silent": silent, "finished": finished}
    return {f'node_ranks{{state="{state}"}}': count for state, count in counts.items()}


def test_newest_verdict_is_exposed_once() -> None:
    """That on the latest step; of several on it, the last one read, however many repeat it.

    Of the ranks here that which saw fewest steps joined counts.
    """
    node = Node()
    for rank, (step, slowdown, age, coverage) in enumerate(
        ((100, 1.1, 0.0, 1.0), (200, 1.2, 9.0, 0.75), (200, 1.3, 3.0, None), (200, 1.3, 3.0, 1.0))
    ):
        told = verdict(step=step, slowdown=slowdown)
        node.push(rank=rank, verdict=told, verdict_age_seconds=age, join_coverage=coverage)

    assert node.shown("job_sl") == {"job_slowdown_ratio": 1.3}
    assert node.shown("job_cov") == {"job_coverage_ratio": 0.75}


@pytest.mark.parametrize(
    ("groups", "slower", "scope"),
    [({"pp1": 4}, 0, "all"), ({"all": 2, "pp1": 2}, 0, "pp1"), ({"pp1": 4}, 2, "set")],
)
def test_change_of_the_job_is_exposed_while_it_lasts(
    groups: dict[str, int], slower: int, scope: str
) -> None:
    """By stage and of which ranks; its onset does not waver."""
    node = Node()
    labels = f'in_common="",scope="{scope}",stage="forward"'
    for after in (0.0, 10.5):
        change = replace(CHANGE, since_seconds=300.0 + round(after), gpus=0.8, slower=slower)
        node.beat(after=after, verdict=verdict(ranks=groups, changes=(change,)))
        assert node.shown("job_change") == {
            f"job_change_ratio{{{labels}}}": 2.0,
            f"job_change_gpus{{{labels}}}": 0.8,
            f"job_change_since_timestamp_seconds{{{labels}}}": WALL - 300.0,
        }

    node.beat(verdict=verdict(ranks=groups))
    assert node.shown("job_change") == {}


def test_job_that_cannot_be_judged_says_why() -> None:
    """The reason is a series; unknown figures are absent."""
    unknown: dict[str, Any] = {"step_seconds": None, "slowdown": None, "gpus_lost": {}}
    node = Node()
    silence = verdict(reason="warming_up", ranks={}, rotating={}, **unknown)
    node.push(verdict=silence, join_coverage=1.0)

    assert node.shown("job_") == {
        'job_not_judgeable{reason="warming_up"}': 1.0,
        'job_judge_info{judge="join"}': 1.0,
        "job_absent_ranks": 0.0,
    }


@pytest.mark.parametrize("behind_seconds", [90.0, -90.0])
def test_wrong_clock_changes_no_age(behind_seconds: float) -> None:
    """On a node whose clock is 90 s off, who reports is not silent, and every age is right."""
    node = Node(behind_seconds)
    node.beat(1)
    node.beat(2, finished=True)
    node.clock.seconds += 6.0
    node.beat(last_step_timestamp_seconds=node.time(ago_seconds=2.5))
    node.clock.seconds += 5.0
    assert node.shown("node_") == states(1, 1, 1) | {
        "node_world_size": 4.0,
        "node_run_seconds": 71.0,
        "node_last_step_age_seconds": 7.5,
        "node_stepping_ranks": 1.0,
    }
    assert shown(RanksCollector(node.store), "rankskew_rank_silent_seconds") == [
        'rankskew_rank_silent_seconds{job_id="llama",peer_group="all",rank="1"} 11.0'
    ]

    # When the wall clock is set back, the job has still run for as long as it has.
    node.beat(heartbeat_timestamp_seconds=node.time(ago_seconds=300.0))
    assert node.shown("node_run_seconds") == {"node_run_seconds": 71.0}


def test_ranks_of_a_job_are_told_together() -> None:
    """Those that have not stepped, or with the probe off, do not make the job stand still.

    Before the first step there is no age of it. Once all are gone there is none of anything, and no
    verdict: neither a rank that ended nor one that fell silent speaks for the job.
    """
    node = Node()
    node.beat(steps=0)
    assert node.shown("node_st") == {"node_stepping_ranks": 0.0, "node_starting_seconds": 60.0}
    assert node.shown("node_last_step") == {}

    node.beat(0, verdict=verdict(), last_step_timestamp_seconds=node.time(ago_seconds=40.0))
    node.beat(1, last_step_timestamp_seconds=node.time(ago_seconds=1.0))
    node.beat(2, verdict=verdict(), finished=True)
    node.beat(3, last_step_timestamp_seconds=node.time(ago_seconds=0.0), level="off")
    assert node.shown("node_last_step") == {"node_last_step_age_seconds": 1.0}
    assert node.shown("node_st") == {"node_stepping_ranks": 3.0}
    assert node.shown("node_ranks") == states(3, 0, 1)

    node.clock.seconds += 10.0
    assert node.shown("job_") == {}
    assert node.shown("node_") == states(0, 3, 1) | {"node_stepping_ranks": 0.0}


RUNTIME = dict.fromkeys(RUNTIME_INFO_LABELS, "1")
Report = Callable[[float], dict[str, Any]]


def after(minutes: int, *ranks: Report) -> dict[str, float]:
    """Return what is shown after so many minutes, a scrape in each, in which *ranks* report so.

    By name and the labels' values, except what is usual.
    """
    node = PushingNode()
    collector = RankWorkCollector(node.store)
    for minute in range(minutes + 1):
        node.clock.seconds = 60.0 * minute
        for rank, report in enumerate(ranks):
            node.push(**{"rank": rank, "pid": rank} | report(minute))
        lines = shown(collector, "rankskew_node_")
    found = {}
    for line in lines:
        series, _, value = line.removeprefix("rankskew_node_").rpartition(" ")
        labels = [each for each in re.findall('"(.*?)"', series) if each not in ("llama", "1", "")]
        found[" ".join([series.partition("{")[0], *labels])] = float(value)
    return found


def work(group: str, most: float, mean: float, ranks: float) -> dict[str, float]:
    """Return what is shown of a group whose ranks do so much work in a step."""
    names = ("work_per_step_max", "work_per_step_mean", "working_ranks")
    return {
        f"{name} {group}": value for name, value in zip(names, (most, mean, ranks), strict=True)
    }


# After so many minutes of such reports, what is shown.
WORK: dict[str, tuple[int, list[Report], dict[str, float]]] = {
    # Tokens if they are counted, else samples, else steps, of the last ten minutes.
    "one rank that alone counts its tokens": (
        20,
        [lambda m: {"steps": 60 * m, "tokens": 60_000 * m}, lambda m: {"steps": 60 * m}],
        work("all", 1.0, 1.0, 2.0),
    ),
    "work in the ranks' own unit": (
        20,
        [
            lambda m: {"steps": 60 * m, "tokens": 60_000 * m, "samples": m},
            # A long text an hour ago is forgotten.
            lambda m: {"steps": 60 * m, "tokens": 120_000 * m + (10**9 if m > 5 else 0)},
            lambda m: {"steps": 7, "tokens": 7},  # Stands still.
            lambda m: {"steps": 60 * m, "peer_group": "pp1", "samples": 240 * m},
            lambda m: {"steps": 60 * m, "job_id": "steps"},
        ],
        {
            **work("all", 2000.0, 1500.0, 2.0),
            **work("pp1", 4.0, 4.0, 1.0),
            **work("steps all", 1.0, 1.0, 1.0),
        },
    ),
    # A rank that counts no padding makes it no smaller.
    "padding": (
        5,
        [lambda m: {"tokens": 1000 * m, "padding_tokens": 400 * m}, lambda m: {"tokens": 9000 * m}],
        {"padding_ratio": 0.4},
    ),
    # Of the last hour of the slowest rank; the first counts, those before it was seen do not.
    **{
        f"checkpoints after {minutes} minutes": (
            minutes,
            [
                lambda m: {"stage_seconds": {"checkpoint": 600.0} if m > 30 else {"sync": m}},
                lambda m: {"stage_seconds": {"checkpoint": 3000.0 + m}},
            ],
            {"checkpoint_ratio": seconds / 3600},
        )
        for minutes, seconds in ((60, 600), (92, 60))
    },
    # Its counts go back to 0, also where a container gives it the same number.
    "a process that starts again": (
        5,
        [lambda m: {"steps": (60 * m + 100) % 300, "tokens": (60_000 * m + 100_000) % 300_000}],
        work("all", 1e3, 1e3, 1.0),
    ),
    # Of ranks that know their GPUs; the probe's own version makes no difference.
    "versions, settings and GPUs": (
        1,
        [
            lambda m: {"runtime_info": RUNTIME},
            lambda m: {"runtime_info": RUNTIME | {"probe": "2"}},
            lambda m: {"runtime_info": RUNTIME | {"torch": "2"}},
            lambda m: {"runtime_info": RUNTIME | {"device_count": ""}},
        ],
        {"runtime_ranks": 2.0, "runtime_ranks 2": 1.0},
    ),
    # The last words of a rank that falls silent or ends are not those of the job.
    "a rank that ended": (
        4,
        [lambda m: {"runtime_info": RUNTIME, "steps": m, "finished": m > 3}],
        {},
    ),
}


@pytest.mark.parametrize(("minutes", "ranks", "told"), WORK.values(), ids=WORK)
def test_work_of_the_ranks_is_told_of_the_job(
    minutes: int, ranks: list[Report], told: dict[str, float]
) -> None:
    assert after(minutes, *ranks) == pytest.approx(told)


@pytest.mark.parametrize("changes", [{"rank": 3}, {"finished": True}])
def test_rank_of_another_node_or_that_is_gone_is_not_told_here(changes: dict[str, Any]) -> None:
    """Each late rank is exposed by its own node's exporter, with its line, while it beats."""
    node = Node()
    lines = LateLinesCollector(node.store)
    told = {
        "verdict": verdict(),
        "late_lines": [{"stage": "data", "place": "parse (corpus.py:70)", "share": 0.75}],
    }
    node.beat(**{"rank": 2} | told | changes)
    assert node.late() == []
    assert (shown(lines) == []) == ("finished" in changes)

    node.push(rank=2, started_timestamp_seconds=9_000.0, **told)
    assert node.late() != []
    node.clock.seconds += 10.0
    assert node.late() == shown(lines) == []


def test_onset_is_that_of_the_incident() -> None:
    """Rounds of the judge, of the rank and of the scrape tell one incident's onset as one.

    A rank that recovers and is late again, or gets a new onset, has another one. If it is unknown
    whether any rank waits for it, no GPU is counted as waiting.
    """
    node = Node()

    def since(late_seconds: float, age_seconds: float, after: float) -> float:
        told = verdict(late=(late(kind="unsynced", since_seconds=late_seconds),))
        node.beat(2, after, verdict=told, verdict_age_seconds=age_seconds)
        return onset()

    def onset() -> float:
        ratio, onset = node.late()
        assert ratio.startswith("rankskew_late_ratio")
        assert onset.startswith("rankskew_late_since_timestamp_seconds")
        return float(onset.rpartition(" ")[2]) - WALL

    assert since(30.0, 1.5, after=0.0) == -31.5
    node.clock.seconds += 5.0  # Each verdict is that much older at the scrape.
    assert onset() == -31.5
    for late_seconds, age_seconds in ((37.0, 0.2), (37.5, 1.2), (41.0, 0.1)):
        assert since(late_seconds, age_seconds, after=1.0) == -31.5
    assert since(10.0, 0.0, after=32.0) == 30.0

    node.beat(2, after=1.0, verdict=verdict(late=()))
    assert node.late() == []
    assert since(11.0, 0.0, after=1.0) == 31.0


def causes(number: int = 1, job_id: str = "llama", **changes: Any) -> LateCauses:
    """Return what is known of so many ranks that are late for one cause."""
    cause = replace(Cause("gc", "", 0.5, "", "", "gc_ratio", 0.2, 0.1), **changes)
    found = LateCauses()
    for rank in range(number):
        found.take((job_id, rank), cause, RankPlace("all", "node-7", "3"), 0.0, 60.0)
    return found


def of_causes(found: LateCauses, name: str) -> list[str]:
    return shown(LateCausesCollector(found), f"rankskew_late_cause_{name}")


def test_cause_is_told_with_what_is_known_of_it() -> None:
    """A rank alone has nobody to be held against, and what a thread does has no number at all.

    At most 32 ranks of a job are shown, and 256 characters of a text.
    """
    alone, unknown = causes(peers_value=None), causes(value=None, peers_value=None, share=0.0)
    (info,) = of_causes(causes(sentence="s" * 256, first_action="a" * 257), "info")

    assert [line.rsplit(" ", 1)[1] for line in of_causes(alone, "figure")] == ["0.2"]
    assert of_causes(unknown, "figure") == []
    assert [line.rsplit(" ", 1)[1] for line in of_causes(unknown, "share")] == ["0.0"]
    assert len(of_causes(causes(40), "")) == 4 * 32
    assert f'sentence="{"s" * SENTENCE_CHARACTERS}"' in info
    assert f'first_action="{"a" * 255}…"' in info
