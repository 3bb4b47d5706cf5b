"""The live view repeats the job's verdict, and shows when no rank can be named."""

import gc
import json
import weakref
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from exporter.live.page import LiveSummary, LiveView
from exporter.live.window import RankWindow
from exporter.ranks.store import RankStore
from rank_probe.snapshot import Snapshot
from rank_probe.version import __version__
from tests.exporter.snapshots import CHANGE, late, snapshot, verdict

START = 1_700_000_000.0
STAGES = {"data": 0.05, "forward": 0.1, "backward": 0.2, "sync": 0.15}


EVEN = verdict(late=(), slowdown=1.0, gpus_lost={"common": 0.5}, rotating={})


def served(view: LiveView) -> dict[str, Any]:
    """Return what the page gets."""
    summary: dict[str, Any] = json.loads(TypeAdapter(LiveSummary).dump_json(view.summary()))
    return summary


class Node:
    """A node whose ranks push once a second, on a clock that the test turns.

    They repeat the verdict *said*, read at the moment of the push; *behind_seconds* is how wrong
    the node's wall clock is.
    """

    def __init__(
        self, ranks: int = 4, world_size: int | None = None, behind_seconds: float = 0.0
    ) -> None:
        self.now = START
        self.behind_seconds = behind_seconds
        self.said: dict[str, Any] | None = EVEN
        self.store = RankStore(clock=lambda: self.now)
        self.view = LiveView(self.store)
        self.world_size = world_size or ranks
        self.states = {rank: self.fresh(rank) for rank in range(ranks)}

    def fresh(self, rank: int) -> Snapshot:
        return Snapshot(
            job_id="demo",
            peer_group="all",
            rank=rank,
            world_size=self.world_size,
            attempt=0,
            pid=100 + rank,
            started_timestamp_seconds=self.now - self.behind_seconds,
            sequence=0,
            heartbeat_timestamp_seconds=self.now - self.behind_seconds,
            steps=0,
            stage_seconds={},
            busy_seconds=0.0,
            busy_seconds_squared=0.0,
            stage="sync",
            stage_elapsed_seconds=0.1,
        )

    def step(self, stages: dict[str, float] = STAGES) -> None:
        """Let every rank finish one step of *stages*, rank 2 with a slow loader."""
        for rank, state in self.states.items():
            spent = stages | (SLOW_DATA if rank == 2 and stages is STAGES else {})
            busy = sum(seconds for stage, seconds in spent.items() if stage != "sync")
            self.states[rank] = replace(
                state,
                steps=state.steps + 1,
                stage_seconds={s: state.stage_seconds.get(s, 0.0) + spent[s] for s in spent},
                busy_seconds=state.busy_seconds + busy,
                busy_seconds_squared=state.busy_seconds_squared + busy**2,
                last_step_timestamp_seconds=self.now - self.behind_seconds,
            )

    def push(self, silent: tuple[int, ...] = ()) -> dict[str, Any]:
        """Let a second pass, every rank but the *silent* push, and return the job as served."""
        self.now += 1
        for rank, state in self.states.items():
            if rank not in silent:
                self.states[rank] = replace(
                    state,
                    sequence=state.sequence + 1,
                    heartbeat_timestamp_seconds=self.now - self.behind_seconds,
                    verdict=self.said,
                    verdict_age_seconds=None if self.said is None else 0.0,
                )
                self.store.put(self.states[rank])
        self.view.sample(self.now, self.now)
        jobs: list[dict[str, Any]] = served(self.view)["jobs"]
        return jobs[0]

    def run(self, seconds: int) -> dict[str, Any]:
        """Run two steps a second for *seconds* and return the job as served at the end."""
        for _ in range(seconds):
            self.step()
            self.step()
            job = self.push()
        return job

    def judged(self, said: dict[str, Any] | None) -> dict[str, Any]:
        """Run for a while, and return the verdict as served when the judge has *said* this."""
        self.said = said
        shown: dict[str, Any] = self.run(30)["verdict"]
        return shown


SLOW_DATA = {"data": 0.19, "sync": 0.01}


def test_node_without_ranks_has_no_jobs() -> None:
    """Before any report, the page has an empty list and draws nothing."""
    view = LiveView(RankStore())

    assert view.summary().jobs == []
    view.sample(START, START)
    assert served(view) == {
        "version": __version__,
        "host": "",
        "grafana_url": None,
        "timestamp_seconds": START,
        "window_seconds": 60.0,
        "gpus_visible": None,
        "jobs": [],
        "gpus": [],
    }


def test_gpus_are_counted_once_the_driver_was_asked() -> None:
    """Not known yet, none at all and some are three different things to say."""
    answers = iter([None, 0, 8])
    view = LiveView(RankStore(), lambda: next(answers))
    said = [view.summary().gpus_visible]
    for _ in range(3):
        view.sample(START, START)
        said.append(view.summary().gpus_visible)

    assert said == [None, None, 0, 8]


def test_late_rank_is_named_as_the_judge_names_it() -> None:
    """Who is late, where and at what cost is one sentence; the figures are next to it."""
    said = Node().judged(verdict())

    assert said["sentence"] == "Rank 2 is slow loading data; 1.00 of 4 GPUs wait for it."
    assert said["state"] == "straggler"
    assert said["reason"] is None
    assert said["late"] == [
        {
            "rank": 2,
            "peer_group": "all",
            "stage": "data",
            "kind": "persistent",
            "ratio": 0.45,
            "gpus_lost": 1.0,
            "late_for_seconds": 30.0,
            "is_here": True,
        }
    ]
    assert said["details"] == [
        "Rank 2 has needed 45% more time than its peers for 30 s, mostly in data; "
        "1.00 GPUs wait for it.",
        "Steps take 1.44 times as long as without it.",
        "GPUs lost: 1.00 to late ranks; 0.25 to ranks that are late in turn, mostly in data; "
        "0.50 to waits that all ranks have in common.",
    ]
    assert said["slowdown"] == 1.44
    assert said["gpus_lost"]["persistent"] == 1.0


def test_late_rank_of_another_node_is_named_here_too() -> None:
    """The verdict is on the whole job: every node's page names the same rank."""
    node = Node(ranks=4, world_size=64)
    said = node.judged(verdict(late=(late(rank=17),), ranks={"all": 64}))

    assert said["sentence"] == (
        "Rank 17 (not on this node) is slow loading data; 1.00 of 64 GPUs wait for it."
    )
    assert [each["is_here"] for each in said["late"]] == [False]


LINES = [
    {"stage": "data", "place": "Corpus.__next__ (corpus.py:41)", "share": 0.71},
    {"stage": "data", "place": "parse (corpus.py:70)", "share": 0.125},
    {"stage": "forward", "place": "<b>loss</b> (train.py:9)", "share": 1.0},
]
IN_CODE = (
    "Code of rank 2: data: 71% in Corpus.__next__ (corpus.py:41), 12% in parse (corpus.py:70); "
    "forward: 100% in <b>loss</b> (train.py:9)."
)


@pytest.mark.parametrize("said", [verdict(), None])
def test_late_ranks_lines_are_shown(said: dict[str, Any] | None) -> None:
    """The lines of a late rank here are with it and among the details, with a judge or without."""
    node = Node()
    node.states[2] = replace(node.states[2], late_lines=LINES)
    shown = node.judged(said)
    job = node.run(1)

    assert shown["details"][-1] == IN_CODE
    assert [rank["late_lines"] for rank in job["ranks"]] == [[], [], LINES, []]


def test_lines_of_a_silent_rank_are_old() -> None:
    """A rank that stopped reporting is somewhere else by now."""
    node = Node()
    node.states[2] = replace(node.states[2], late_lines=LINES)
    node.judged(verdict())
    for _ in range(20):
        job = node.push(silent=(2,))

    assert IN_CODE not in job["verdict"]["details"]


def test_lateness_grows_between_verdicts() -> None:
    """The page shows how long a rank has been late by now, not when it was judged."""
    node = Node()
    node.judged(verdict())
    for _ in range(3):
        job = node.push(silent=(0, 1, 2, 3))

    assert job["verdict"]["late"][0]["late_for_seconds"] == 33.0


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (
            "mild",
            "No rank is late enough for an alert: rank 2 needs 45% more time than its peers.",
        ),
        (
            "unsynced",
            "It is not known whether a rank is late: rank 2 needs 45% more time than its peers, "
            "but no wait was measured.",
        ),
    ],
)
def test_rank_that_wakes_nobody_is_listed_and_the_job_even(kind: str, sentence: str) -> None:
    """A mild lateness is shown as such, and is no alarm."""
    said = Node().judged(verdict(late=(late(kind=kind),)))

    assert (said["state"], said["sentence"]) == ("healthy", sentence)
    assert [each["rank"] for each in said["late"]] == [2]


def test_ranks_that_wake_come_first() -> None:
    """Who reads the first late rank has one that is late, though a mild one may cost more."""
    said = Node().judged(verdict(late=(late(rank=1, kind="mild"), late(gpus={"data": 0.5}))))

    assert [each["rank"] for each in said["late"]] == [2, 1]
    assert said["sentence"] == "Rank 2 is slow loading data; 0.50 of 4 GPUs wait for it."


def test_change_of_a_group_is_told() -> None:
    """If no rank is late against its peers, the page shows what became slower."""
    said = Node().judged(EVEN | verdict(late=(), changes=(CHANGE,), gpus_lost={}, rotating={}))

    assert said["state"] == "healthy"
    assert said["details"] == [
        "Forward of peer group pp1 has taken 2.0 times as long as before for 5 min."
    ]


@pytest.mark.parametrize("reason", ["no_sync", "no_peers", "no_busy_time"])
def test_judges_reason_is_told(reason: str) -> None:
    """If the judge can name no rank, the page shows the reason."""
    said = Node().judged(verdict(reason=reason, late=()))

    assert (said["state"], said["reason"]) == ("not_judgeable", reason)
    assert said["sentence"].startswith("Cannot judge this job: ")


@pytest.mark.parametrize(("seconds", "state"), [(30, "starting"), (901, "not_judgeable")])
def test_judge_that_warms_up_is_a_start_for_a_quarter_of_an_hour(seconds: int, state: str) -> None:
    """A young job starts; one that still cannot be judged later has the reason as its state."""
    node = Node()
    node.said = verdict(reason="warming_up", late=())
    said = node.run(seconds)["verdict"]

    assert (said["state"], said["reason"]) == (state, "warming_up")
    assert said["sentence"].startswith("Cannot judge this job yet")


def test_job_without_a_step_is_starting() -> None:
    """Before any rank has finished a step the page says for how long it has been starting."""
    node = Node()
    for _ in range(41):
        said = node.push()["verdict"]

    assert (said["state"], said["runbook"], said["alert"]) == (
        "starting",
        "RankskewSlowStart",
        None,
    )
    assert said["sentence"] == "Starting for 41 s: no rank on this node has finished a step yet."


def test_node_that_is_late_is_a_state_of_its_own() -> None:
    """Where one of the late ranks is late with its node, the node is what is slow."""
    said = Node().judged(verdict(late=(late(), late(rank=3, kind="node"))))

    assert (said["state"], said["runbook"]) == ("slow_node", "RankskewSlowNode")


@pytest.mark.parametrize(("gpus", "state"), [(0.4, "healthy"), (0.41, "rotating")])
def test_ranks_late_in_turn_are_worth_a_state_from_a_tenth_of_the_gpus(
    gpus: float, state: str
) -> None:
    """The loss to ranks that are late in turn is told with its stage once it is worth an alert."""
    said = Node().judged(verdict(late=(), gpus_lost={"rotating": gpus}, rotating={"data": gpus}))

    assert said["state"] == state
    if state == "rotating":
        assert said["sentence"] == (
            "Another rank is slow in each step, mostly loading data; "
            "0.41 of 4 GPUs wait for whichever it is."
        )
        assert said["alert"] == "RankskewRotatingImbalance"


def test_slow_start_raises_its_alert() -> None:
    """After a quarter of an hour without a step it is time to look at what a rank does."""
    node = Node()
    for _ in range(901):
        said = node.push()["verdict"]

    assert (said["state"], said["alert"]) == ("starting", "RankskewSlowStart")
    assert said["first_action"] == "py-spy dump --pid 100"


def test_ranks_that_were_never_seen_are_missing() -> None:
    """A verdict on a part of the job is no good news about all of it."""
    node = Node(ranks=4, world_size=8)
    node.said = EVEN | {"absent": 4}
    young = node.run(30)["verdict"]
    said = node.run(120)["verdict"]

    assert young["state"] == "healthy"
    assert (said["state"], said["alert"]) == ("ranks_missing", "RankskewRanksMissing")
    assert said["sentence"].startswith("4 of 8 ranks have never been in a step that the judge saw")
    assert said["details"][0].startswith("No rank is late")


def test_evaluator_of_this_node_is_not_missing() -> None:
    """A rank that reports and never steps is here: its absence from the steps is no news."""
    node = Node()
    node.said = EVEN | {"absent": 1}
    for _ in range(150):
        for rank in (0, 1, 2):
            node.states[rank] = replace(node.states[rank], steps=node.states[rank].steps + 1)
        said = node.push()["verdict"]

    assert said["state"] == "healthy"


def test_silent_rank_of_a_stepping_job_is_missing() -> None:
    """While others still step, the silence of one comes before what the judge says of them."""
    node = Node()
    node.run(30)
    for _ in range(12):
        node.step()
        said = node.push(silent=(2,))["verdict"]

    assert (said["state"], said["alert"]) == ("ranks_missing", "RankskewRanksMissing")
    assert said["sentence"] == (
        "Rank 2 has not reported for 12 s: dead, stopped, or unable to reach this exporter."
    )
    assert said["details"][0].startswith("No rank is late")


@pytest.mark.parametrize(("seconds", "state"), [(840, "starting"), (960, "not_judgeable")])
def test_job_without_a_join_says_so(seconds: int, state: str) -> None:
    """Ranks that do not compare their steps are not judged here, which a young job may still be."""
    node = Node()
    node.said = None
    said = node.run(seconds)["verdict"]

    assert (said["state"], said["reason"], said["late"]) == (state, "no_join", [])
    assert said["sentence"] == (
        "Cannot judge this job: the ranks on this node do not compare their steps; Prometheus' "
        "fallback rules can still name a rank that is 10 % late."
    )
    assert said["first_action"].startswith("Look into the log of rank 0")


def test_job_of_one_rank_has_no_peers() -> None:
    """A lone rank has no peers to be compared with, and the page says so."""
    assert Node(ranks=1).judged(None)["reason"] == "no_peers"


def test_join_that_has_just_begun_is_warming_up() -> None:
    """Before the first steps are joined there is no verdict, and that is not a failure."""
    node = Node()
    node.said = None
    node.step()
    assert node.push()["verdict"]["reason"] == "warming_up"

    node.states = {rank: replace(each, joined_seconds=0.0) for rank, each in node.states.items()}
    assert node.run(5)["verdict"]["reason"] == "warming_up"
    node.states = {rank: replace(each, join_coverage=0.0) for rank, each in node.states.items()}
    assert node.run(5)["verdict"]["reason"] == "no_join"


def test_newest_verdict_is_repeated() -> None:
    """Ranks read the verdict at different times: the page shows the newest."""
    node = Node()
    node.run(10)
    newer = verdict(step=9_999)
    node.store.put(replace(node.states[3], sequence=999, verdict=newer, verdict_age_seconds=1.0))
    node.view.sample(node.now, node.now)

    assert served(node.view)["jobs"][0]["verdict"]["state"] == "straggler"


def test_wrong_clock_makes_nobody_silent() -> None:
    """On a node whose clock is 90 s behind every rank is heard from now, and steps."""
    job = Node(behind_seconds=90.0).run(70)

    assert job["verdict"]["state"] == "healthy"
    assert [rank["silent"] for rank in job["ranks"]] == [False] * 4
    assert [rank["heartbeat_age_seconds"] for rank in job["ranks"]] == [0.0] * 4
    assert [rank["last_step_age_seconds"] for rank in job["ranks"]] == [1.0] * 4


def test_window_forgets_what_is_older_than_a_minute() -> None:
    """The bars are the last minute's: what a rank did before is not drawn."""
    node = Node()
    node.run(60)
    for _ in range(61):
        node.step({"data": 0.1, "sync": 0.4})
        job = node.push()

    assert job["ranks"][2]["stage_seconds"]["data"] == pytest.approx(0.1)


def test_stages_are_seconds_per_step_of_the_window() -> None:
    """Each rank's stages are means per step, in step order, and add up to its step."""
    job = Node().run(30)
    rank = job["ranks"][2]

    assert list(rank["stage_seconds"]) == ["data", "forward", "backward", "sync"]
    assert rank["stage_seconds"]["data"] == pytest.approx(0.19)
    assert rank["wait_seconds"] == pytest.approx(0.01)
    assert rank["step_seconds"] == pytest.approx(job["step_seconds"])
    assert rank["steps"] == job["steps"] == 60


def test_ranks_elsewhere_are_counted() -> None:
    """On a node with a part of the job, the page shows how large that part is."""
    job = Node(ranks=4, world_size=64).run(30)

    assert job["coverage"] == "4 of 64 ranks"


def test_common_wait_points_elsewhere() -> None:
    """Even ranks that all wait are waiting for the network."""
    said = Node().judged(EVEN | {"gpus_lost": {"common": 1.2}})

    assert said["state"] == "healthy"
    assert said["sentence"].endswith("All ranks wait for the network for 30% of each step.")


def test_first_steps_are_not_drawn() -> None:
    """The steps that compile never enter the window."""
    node = Node()
    node.step()
    young = node.push()
    node.step({"forward": 60.0})
    node.push()
    job = node.run(30)

    assert young["ranks"][0]["stage_seconds"] is None
    assert job["ranks"][0]["stage_seconds"]["forward"] == pytest.approx(0.1)


def test_slow_steps_are_drawn_over_more_than_a_minute() -> None:
    """Of steps of 30 seconds the last few are drawn."""
    node = Node(ranks=2)
    for _ in range(12):
        node.step({"data": 3.0, "forward": 24.0, "sync": 3.5})
        for _ in range(30):
            job = node.push()

    assert job["ranks"][1]["stage_seconds"]["data"] == pytest.approx(3.0)


def test_restarted_rank_starts_its_window_anew() -> None:
    """Counters of a new process are never subtracted from those of the old one."""
    node = Node()
    node.run(30)
    node.states = {rank: replace(node.fresh(rank), pid=200 + rank) for rank in node.states}
    restarted = node.push()

    assert restarted["ranks"][0]["stage_seconds"] is None
    assert node.run(30)["ranks"][0]["stage_seconds"] is not None


def test_job_that_is_turned_off_does_not_hang() -> None:
    """A rank that times nothing is not judged, and its standing counters are no alarm."""
    node = Node()
    node.run(30)
    node.states[2] = replace(node.states[2], level="off")
    for _ in range(40):
        job = node.push()

    assert (job["verdict"]["state"], job["verdict"]["reason"]) == ("not_judgeable", "off")
    assert "rankskew control JOB_ID stages turns it on" in job["verdict"]["sentence"]
    assert [rank["level"] for rank in job["ranks"]] == ["stages", "stages", "off", "stages"]


def test_hung_job_names_the_rank_outside_sync() -> None:
    """When no rank steps any more, the rank that is not waiting is named with its stage."""
    node = Node()
    node.run(30)
    node.states[2] = replace(node.states[2], stage="data", stage_elapsed_seconds=40.0)
    for _ in range(40):
        job = node.push()

    assert job["verdict"]["state"] == "hung"
    assert job["verdict"]["sentence"] == (
        "No step for 41 s, 4 of 4 GPUs wait: rank 2 is in data; 3 of 4 ranks wait in sync."
    )
    assert job["verdict"]["gpus_lost"] == {"hung": 4.0}


def test_rank_that_never_steps_hides_no_hang() -> None:
    """An evaluator is not part of the training: if that hangs, the page shows it."""
    node = Node()
    node.run(30)
    node.states[3] = replace(node.fresh(3), pid=103, stage="eval")
    for _ in range(40):
        job = node.push()

    assert job["verdict"]["sentence"] == (
        "No step for 41 s, 4 of 4 GPUs wait: every rank on this node that has finished a step "
        "waits in sync; of those that have not, rank 3 is in eval."
    )


def test_restart_with_fewer_ranks_shows_those() -> None:
    """A job that was killed and continues with two of its four ranks here has only those two."""
    node = Node()
    node.run(30)
    for _ in range(12):
        node.push(silent=(0, 1, 2, 3))
    node.world_size = 2
    node.states = {rank: replace(node.fresh(rank), attempt=1) for rank in range(2)}
    job = node.run(30)

    assert [rank["rank"] for rank in job["ranks"]] == [0, 1]
    assert (job["coverage"], job["verdict"]["state"]) == ("2 of 2 ranks", "healthy")


def test_stopped_process_is_named_by_its_silence() -> None:
    """A stopped process cannot report where it is; its silence is enough."""
    node = Node()
    node.run(30)
    for _ in range(40):
        job = node.push(silent=(2,))

    assert (
        "rank 2 has been silent for 40 s; 3 of 4 ranks wait in sync" in job["verdict"]["sentence"]
    )
    assert [rank["silent"] for rank in job["ranks"]] == [False, False, True, False]


def test_hang_caused_elsewhere_blames_nobody_here() -> None:
    """If every rank of this node waits in sync, what holds the job up is not here."""
    node = Node(ranks=4, world_size=8)
    node.run(30)
    for _ in range(40):
        job = node.push()

    assert "is not on this node" in job["verdict"]["sentence"]


def test_long_checkpoint_of_slow_steps_is_no_hang() -> None:
    """Ten times the usual step must pass before a standstill is called one."""
    node = Node(ranks=2)
    for _ in range(12):
        node.step({"forward": 8.0, "sync": 2.0})
        for _ in range(10):
            node.push()
    for _ in range(60):
        job = node.push()

    assert job["verdict"]["state"] == "healthy"


def test_killed_job_is_silent() -> None:
    """When every rank falls silent the sentence says so rather than naming one."""
    node = Node()
    node.run(30)
    for _ in range(20):
        job = node.push(silent=(0, 1, 2, 3))

    assert job["verdict"]["state"] == "ranks_missing"


def test_finished_job_is_finished() -> None:
    """A clean end is neither a hang nor a silence, however long ago."""
    node = Node()
    node.run(30)
    node.states = {rank: replace(state, finished=True) for rank, state in node.states.items()}
    node.push()
    for _ in range(60):
        job = node.push(silent=(0, 1, 2, 3))

    assert job["verdict"]["sentence"] == "Finished after 60 steps."


def test_shrinking_counters_harm_nobody() -> None:
    """If a rank's counters run backwards, its bars are empty and the page still works."""
    node = Node(ranks=2)
    node.run(30)
    for _ in range(90):
        node.step({"data": -1.0, "sync": 0.5})
        job = node.push()

    assert job["ranks"][0]["stage_seconds"]["data"] == 0.0


@pytest.mark.parametrize("number", [0.0, 5e-324, 1e-310, 1e15])
def test_page_is_json_whatever_number_a_rank_reports(number: float) -> None:
    """No sum, mean or ratio of what is taken in is infinite or not a number."""
    node = Node(ranks=2)
    node.said = verdict(
        step_seconds=number,
        slowdown=number,
        gpus_lost={"persistent": number},
        late=(late(ratio=number, gpus={"data": number}, since_seconds=number),),
        changes=(replace(CHANGE, ratio=number, since_seconds=number),),
    )
    for _ in range(90):
        node.step({"data": number, "sync": number})
        node.push()

    json.dumps(served(node.view), allow_nan=False)


@pytest.mark.parametrize("hour", [3_600.0, -3_600.0])
def test_step_of_the_wall_clock_names_nobody_silent(hour: float) -> None:
    """When the wall clock jumps an hour, no rank falls silent and the window stays full."""
    node = Node()
    before = node.run(70)
    node.view.sample(node.now, node.now + hour)
    (after,) = served(node.view)["jobs"]

    assert not any(rank["silent"] for rank in after["ranks"])
    assert after["step_seconds"] == before["step_seconds"]


def test_forgotten_rank_leaves_the_page() -> None:
    """What the store no longer holds is not shown, and a new job of that name starts empty."""
    node = Node()
    node.run(30)
    node.now += 4000
    node.view.sample(node.now, node.now)

    assert served(node.view)["jobs"] == []


class Watched(dict[str, Any]):
    """A verdict that can be weakly referenced."""


def test_minute_of_a_rank_holds_no_old_verdicts() -> None:
    """The window keeps only the steps and stages of snapshots, which are the smaller part."""
    window = RankWindow()
    old = Watched(verdict())
    forgotten = weakref.ref(old)
    window.add(1.0, snapshot(steps=10, stage_seconds={"data": 1.0}, verdict=old))
    del old
    window.add(2.0, snapshot(steps=20, stage_seconds={"data": 2.0}))
    gc.collect()

    assert window.stage_seconds() == {"data": 0.1}
    assert forgotten() is None
