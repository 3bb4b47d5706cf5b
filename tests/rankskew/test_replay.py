"""`rankskew replay` reports who was slow in a recorded run, or in one line why it cannot."""

import gzip
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from rank_probe.judge.verdict import WARMING_UP, Late, Verdict
from rankskew.__main__ import main
from rankskew.render import render
from rankskew.replay.findings import findings, not_judgeable
from rankskew.replay.judge import JudgedStretch, confidence, longer
from rankskew.replay.replay import ReplayedJob, in_words, replay
from rankskew.replay.traces import TraceStretch, read_traces
from tests.exporter.recorded import record
from tests.printed import assert_golden

TRACES: Final = Path(__file__).parents[1] / "fixtures" / "traces"
Capture = pytest.CaptureFixture[str]
Place = Callable[[int, int], bool]


def job(capsys: Capture, *arguments: object, status: int | None = None) -> dict[str, Any]:
    """Return what it prints of a job; its *status* is 0 for nothing, 1 for something found."""
    ended = main(["replay", *map(str, arguments), "--json"])
    assert status in (None, ended)
    (found,) = json.loads(capsys.readouterr().out)["jobs"]
    assert isinstance(found, dict)
    return found


def replayed(path: Path) -> ReplayedJob:
    (run,) = read_traces([path])
    return replay(run)


def without(path: Path, dropped: Place) -> Path:
    """Take the rows of a rank and step out of a trace."""
    header, *rows = path.read_text().splitlines()
    kept = [row for row in rows if not dropped(int(row.split(",")[1]), int(row.split(",")[3]))]
    path.write_text("\n".join([header, *kept, ""]))
    return path


# ---- In words ------------------------------------------------------------------------------------


def stops(rank: int, step: int) -> bool:
    """Rank 2 in step 120, rank 5 in step 250, and all of them in step 380."""
    return (step, rank) in ((120, 2), (250, 5)) or step == 380


def is_away(rank: int, step: int) -> bool:
    return (rank >= 6 and step >= 200) or (rank == 5 and step < 400) or (rank + 7 * step) % 97 == 0


QUIET: Final = {"noise": 0.0, "steps": 120}
LATE: Final = QUIET | {"late": lambda rank, step: 0.5 * (rank == 3)}
TURNS: Final = {"late": lambda rank, step: 0.5 * (rank == step * 3 % 8), "steps": 260}
PAUSES: Final = {"late": lambda rank, step: 5.0 * (rank == 3 and step % 50 == 49), "steps": 600}
DUTY: Final = {
    "late": lambda rank, step: 0.8 * (rank == 0 and step % 25 == 24),
    "stage": "other",
    "steps": 400,
}
STAGE: Final = {"late": lambda rank, step: 0.25 * (rank >= 4 and step >= 300), "stage": "forward"}
A_WHILE: Final = {
    "late": lambda rank, step: 0.5 * (rank == 3 and 200 <= step < 500) + 0.08 * (rank == 6)
}
LONG: Final = {"noise": 0.01, "steps": 450}
TINY: Final = {"noise": 0.0, "ranks": 2, "steps": 3}
# Too short for the judge: it is judged as far as it reaches, and that is said.
SHORT: Final = {"steps": 22, "step_seconds": 20.0}
ALWAYS: Final = {"late": lambda rank, step: 0.5 * (rank == 3)}
SINCE: Final = {"late": lambda rank, step: 0.5 * (rank == 3 and step >= 11)}
LITTLE: Final = {"late": lambda rank, step: 0.2 * (rank == 3 and step >= 11)}
LONGER: Final = {"late": lambda rank, step: 0.5 * (step >= 12)}
BLIND: Final = {"synced": False}
STORIES: Final[dict[str, dict[str, Any]]] = {
    "late rank": LATE,
    "slow node": QUIET | {"late": lambda rank, step: 0.3 * (rank in (2, 3))},
    "pauses": QUIET | PAUSES,
    "rank on duty": QUIET | DUTY,
    "rotating": QUIET | TURNS,
    # What no rank does step after step is told as well, and what it costs.
    "two long stops, and one of all": LONG | {"late": lambda rank, step: 60.0 * stops(rank, step)},
    "stops of all ranks": LONG | {"late": lambda rank, step: 4.0 * (step % 32 == 31)},
    "group": QUIET | {"group_work": (1.0, 1.3), "steps": 260},
    "common": QUIET | {"communication": 0.8, "steps": 260},
    # Where no rank is late against its peers, what changed is told: stage, group, how much, when.
    "pipeline stage": STAGE | {"group_work": (1.0, 1.0), "steps": 450},
    # Nobody knows who waits, nor what it costs: whose time stands out, from when to when. Nobody is
    # told who always was a little apart.
    "no wait measured": A_WHILE | BLIND | {"steps": 650},
    # Each period with the same ranks is judged; a rank late throughout is one finding.
    "ranks come and go": ALWAYS | {"steps": 600},
    "one step in ten": ALWAYS | {"steps": 150, "every_seconds": 10.0},
    "steps of half a minute": ALWAYS | {"steps": 33, "every_seconds": 45.0, "step_seconds": 30.0},
    "few rows": LATE,
    # What cannot be accounted for is said, and is no error.
    "a step lacks a rank": TINY,
    "none has all": TINY | {"steps": 2},
    "short, healthy": SHORT,
    "short, late": SHORT | ALWAYS,
    "short, late since": SHORT | SINCE,
    "short, late, no wait measured": SHORT | ALWAYS | BLIND,
    "short, late since, no wait measured": SHORT | LITTLE | BLIND,
    "short, longer on all ranks": SHORT | LONGER,
    "short, longer, no wait measured": SHORT | LONGER | BLIND,
    "a hundred steps, longer on all ranks": SHORT | LONGER | {"steps": 100},
    # It has no peers, but a past.
    "single rank": SHORT | LONGER | {"ranks": 1},
    "single rank, few quick steps": SHORT | LONGER | {"ranks": 1, "step_seconds": 1.0},
    "too short": SHORT | ALWAYS | {"steps": 7},
}
MISSING: Final[dict[str, Place]] = {
    "ranks come and go": is_away,
    "few rows": lambda rank, step: rank == 7 and step % 10 > 0,
    "a step lacks a rank": lambda rank, step: (rank, step) == (1, 2),
    "none has all": lambda rank, step: rank == step,
}


def test_stories_are_the_golden_ones(tmp_path: Path) -> None:
    """One line for each finding, and the kinds with the ranks and stages that cost.

    A rank may be late without making the steps longer.
    """
    texts = {}
    for name, shape in STORIES.items():
        path = record(tmp_path / "a.csv", **shape)
        found = replayed(without(path, MISSING[name]) if name in MISSING else path)
        texts[name] = render(in_words(found))
        if name == "late rank":
            texts["no slowdown"] = render(in_words(replace(found, slowdown=1.004)))
    assert_golden("replay", texts)


# ---- What is found -------------------------------------------------------------------------------


def test_late_rank_is_named_with_time_stage_and_cost(tmp_path: Path, capsys: Capture) -> None:
    """A rank half a step late from step 100 on is named within 20 steps, and what it costs."""
    path = record(
        tmp_path / "a.csv",
        late=lambda rank, step: 0.5 * (rank == 3 and 100 <= step < 250),
        steps=400,
    )
    found = job(capsys, path, status=1)

    assert (found["job_id"], found["attempt"], found["ranks"], found["steps"]) == ("j", 0, 8, 400)
    assert (found["source"], found["not_judgeable"]) == ("judge", [])
    (finding,) = found["findings"]
    assert (finding["kind"], finding["severity"]) == ("persistent", "critical")
    assert (finding["rank"], finding["ranks"], finding["peer_group"]) == (3, [3], "pp0")
    assert (finding["instance"], finding["stage"]) == ("node1", "backward")
    assert finding["onset_s"] == pytest.approx(102, abs=3)
    assert 5 < finding["named_s"] - finding["onset_s"] < 37
    assert 102 + 150 * 1.5 < finding["cleared_s"] < 102 + 150 * 1.5 + 45
    assert finding["ratio"] == pytest.approx(0.5, abs=0.05)
    assert finding["gpus_lost"] == pytest.approx(7 * 0.5 / 1.53, rel=0.1)
    assert found["gpus_lost_by_kind"]["persistent"] == pytest.approx(7 * 0.5 * 150 / 480, rel=0.1)
    assert sum(found["gpus_lost_by_kind"].values()) == pytest.approx(found["gpus_lost"])
    assert found["slowdown"] == pytest.approx(475 / 400, rel=0.02)


def test_real_job_with_a_slow_worker(tmp_path: Path, capsys: Capture) -> None:
    """In ByteDance's trace the worker that was slowed down is named, and no other; docs have it."""
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.decompress((TRACES / "bytedance_AR.csv.gz").read_bytes()))
    found = job(capsys, path)
    (finding,) = found["findings"]

    assert (finding["rank"], finding["kind"], finding["onset_s"]) == (0, "persistent", 0)
    assert found["slowdown"] == pytest.approx(2.168, abs=0.01)
    page = (TRACES.parents[2] / "docs" / "replay.md").read_text()
    assert f"```\n{render(in_words(replayed(path))).strip()}\n```\n" in page


@pytest.mark.parametrize(
    "shape",
    [
        {"steps": 200},
        # Workers on shares of GPUs, a quarter apart for good. The shape of job 2 of Alibaba's
        # mini-batch times: compute alone, a sample every ten seconds.
        {
            "late": lambda rank, step: 0.03 * rank - 0.18,
            **{"ranks": 10, "steps": 250, "every_seconds": 10.0, "synced": False},
        },
        # Ranks that differ by a tenth for good, in as few steps as are judged.
        *(
            SHORT | {"late": lambda rank, step: 0.012 * rank - 0.05, "steps": steps, "synced": sync}
            for steps in (14, 24)
            for sync in (True, False)
        ),
    ],
)
def test_ranks_that_nobody_waits_for_longer_are_nobodys_fault(
    tmp_path: Path, shape: dict[str, Any]
) -> None:
    assert replayed(record(tmp_path / "a.csv", **shape)).findings == []


def test_short_trace_can_be_stretched(tmp_path: Path, capsys: Capture) -> None:
    """A rank that is a little late in seconds of fast steps is not believed; in minutes it is."""
    path = record(
        tmp_path / "a.csv",
        late=lambda rank, step: 0.07 * (rank == 6),
        step_seconds=0.04,
        steps=160,
        noise=0.01,
    )
    short, long = job(capsys, path), job(capsys, "--time-scale=25", path)

    assert [each for each in short["findings"] if each["kind"] == "persistent"] == []
    assert [(each["rank"], each["stage"]) for each in long["findings"]] == [(6, "backward")]
    assert long["seconds"] == pytest.approx(25 * short["seconds"], rel=1e-3)
    assert long["gpus_lost"] == pytest.approx(short["gpus_lost"])


def test_loss_that_is_not_known_is_not_0(tmp_path: Path, capsys: Capture) -> None:
    """As where no step has all ranks: it cannot tell."""
    path = record(tmp_path / "a.csv", ranks=2, steps=2)
    unknown = job(capsys, without(path, lambda rank, step: rank == step), status=2)

    assert (unknown["whole_steps"], unknown["source"]) == (0, "none")
    assert (unknown["gpus_lost"], unknown["gpus_lost_by_kind"]) == (None, {})
    assert unknown["slowdown"] is None


# ---- Traces too short for the judge --------------------------------------------------------------


def test_few_steps_are_sure_from_sixty_on() -> None:
    assert [confidence(steps) is None for steps in (13, 14, 59, 60)] == [True, False, False, True]


@pytest.mark.parametrize("steps", [15, 22, 44, 150])
def test_steps_that_only_drift_and_vary_are_no_change(steps: int) -> None:
    """All ranks become a fifth slower bit by bit, with tails, and a long first step."""
    for seed in range(10):
        draw = random.Random(seed)
        times = [
            (1 + 0.2 * step / steps) * (1 + 0.02 * draw.gauss(0, 1) / draw.gammavariate(1.5, 2 / 3))
            for step in range(steps)
        ]
        half = [each + 0.4 * (step >= steps // 2) for step, each in enumerate(times)]
        found = longer(half, 0.06)

        assert longer([3.0, *times[1:]], 0.06) is None
        assert found is None or abs(found.at - steps // 2) <= 2


# ---- Verdicts become findings: with onset, end and cost ------------------------------------------

INSTANCES = {rank: f"node{rank // 2}" for rank in range(8)}


def late(since: float, rank: int = 3, kind: str = "persistent", gpus: float = 2.0) -> Late:
    """Return a rank that has been late for *since* seconds."""
    return Late(rank, "pp0", "data", kind, 0.5, {"data": gpus}, since, 30, 2.0)


def verdict(*ranks: Late, lost: Mapping[str, float] | None = None, **fields: Any) -> Verdict:
    kinds = dict.fromkeys(("group", "persistent", "rotating", "common"), 0.0)
    said: dict[str, Any] = {
        "step_seconds": 1.0,
        "gpus_lost": kinds | dict(lost or {}),
        "rotating": {},
    }
    return Verdict(100, {"pp0": 8}, late=ranks, **(said | fields))


def judged(verdicts: Mapping[int, Verdict], begin: float = 0.0, warm: float = 5.0) -> JudgedStretch:
    """Return a stretch that begins at *begin*, with these verdicts."""
    stretch = TraceStretch(tuple(range(8)), range(100), begin, max(verdicts))
    return JudgedStretch(stretch, list(verdicts.items()), begin + warm)


def shares(*parts: tuple[int, float], kind: str = "rotating") -> JudgedStretch:
    """Return verdicts every 10 s: so many of them, and the share of the GPUs that is lost."""
    lost = [share * 8 for count, share in parts for _ in range(count)]
    return judged(
        {
            40 + 10 * at: verdict(lost={kind: gpus}, rotating={"data": gpus / 3, "eval": gpus})
            for at, gpus in enumerate(lost)
        }
    )


def costing(*gpus: float) -> list[JudgedStretch]:
    """Return a verdict on ranks that cost so much each."""
    those = [late(20, rank=3 + number, gpus=each) for number, each in enumerate(gpus)]
    return [judged({60: verdict(*those)})]


def of_kinds(*kinds: str) -> list[JudgedStretch]:
    """Return verdicts that call a rank late in these kinds, one after the other."""
    return [
        judged({60 + 2 * n: verdict(late(20 + 2 * n, kind=each)) for n, each in enumerate(kinds)})
    ]


WARMING: Final = {at: verdict(reason=WARMING_UP) for at in range(10)}
UNSEEN: Final = {40: verdict(reason="no_sync")}
NODE: Final = [late(20, rank=2, kind="node", gpus=1.0), late(18, rank=3, kind="node", gpus=0.5)]
ELSEWHERE: Final = late(20, rank=6, kind="node", gpus=0.25)
UNSYNCED: Final = late(20, kind="unsynced", gpus=0.0)
VERDICTS: Final[Mapping[str, Sequence[JudgedStretch]]] = {
    # Verdicts in a row with one onset are one: from the onset, and to the first that is silent.
    "an incident, with its mean cost": [
        judged(
            {
                40: verdict(),
                60: verdict(late(20, gpus=3.0)),
                62: verdict(late(22.5, gpus=2.0)),
                64: verdict(late(24, gpus=1.0)),
                66: verdict(),
                68: verdict(),
            }
        )
    ],
    "another onset": [
        judged({60: verdict(late(20)), 80: verdict(), 90: verdict(late(8)), 92: verdict(late(10))})
    ],
    # The judge looks at no step before the end of the warm-up, so it cannot know better.
    "from the beginning": [judged({30: verdict(late(25))})],
    # At the end of a stretch and at the beginning of the next is one; else it has ended.
    "other ranks come or go": [
        judged({50: verdict(late(20), late(20, rank=5))}),
        judged({60: verdict(reason=WARMING_UP)}, begin=55),
        judged({100: verdict(late(35)), 120: verdict(late(55))}, begin=60),
    ],
    "slow node, and another": [judged({60: verdict(*NODE), 62: verdict(*NODE, ELSEWHERE)})],
    # A rank that is late before its neighbour belongs to a slow node; mild means always mild. A
    # mild rank pages nobody, whatever it costs.
    "node most of the time": of_kinds("persistent", "node", "node"),
    "mild most of the time": of_kinds("mild", "mild", "persistent"),
    "always mild": of_kinds("mild"),
    "no wait measured": [judged({60: verdict(UNSYNCED, reason="no_sync")})],
    # Over a hundredth of the job's GPUs it warns, over a twentieth it pages; so do two ranks
    # together. Nobody is told of a tenth before the costliest is mended.
    "little": costing(0.05),
    "a warning": costing(0.1),
    "a page": costing(0.5),
    "a page together": costing(0.3, 0.3),
    "a page, and a tenth of it": costing(2.0, 0.2),
    # Where more than the threshold is lost for minutes: since when, in which stage, how much.
    "late in turn": [shares((20, 0.02), (40, 0.3), (20, 0.02))],
    "lost too little": [shares((80, 0.09), kind="common")],
    "lost for too short": [shares((20, 0.0), (20, 0.3), (40, 0.0), kind="common")],
    "lost now and then": [shares(*[(1, 0.15), (1, 0.0)] * 40, kind="common")],
    # Half of the run is enough if it is shorter than the rules wait.
    "lost in a short run": [shares((8, 0.3), kind="common")],
    # A reason is told if it stood for half of the run. The warm-up does not count, unless nothing
    # came after it.
    "half of it without a wait": [judged(WARMING | UNSEEN | {50: verdict()})],
    "a third of it without a wait": [judged(WARMING | UNSEEN | {50: verdict(), 60: verdict()})],
    "warm-up only": [judged(WARMING)],
}


def told(stretches: Sequence[JudgedStretch]) -> str:
    """Return the findings, a line each, and why the rest is not judged."""
    lines = []
    for one in findings(stretches, INSTANCES):
        end = "the end" if one.cleared_s is None else f"{one.cleared_s:g} s"
        where = f"{one.kind} ({one.severity}) on {one.instance}"
        lines += [
            f"{one.onset_s:g} s to {end}, named at {one.named_s:g} s: {where}, stage {one.stage}",
            f"  {one.sentence}",
        ]
    lines += [f"Not judgeable: {each}" for each in not_judgeable(stretches)]
    return "\n".join(lines) or "Nothing found."


def test_verdicts_become_one_finding_for_each_incident() -> None:
    """Nobody hears of what the rules would not tell."""
    assert_golden("findings", {name: told(stretches) for name, stretches in VERDICTS.items()})
