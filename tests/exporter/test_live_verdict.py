"""What the judge says of a job, as the page repeats it: who is late, at what cost, what to do."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
import yaml

from exporter.causes.model import UNKNOWN, Cause
from exporter.live.sentences import LateView
from rank_probe.judge.verdict import Change, Together
from tests.exporter.live_node import CAUSE, EVEN, Node, rows
from tests.exporter.snapshots import CHANGE, lates, verdict


def of_64(ranks: str, **changes: Any) -> dict[str, Any]:
    """Return what the page says of a job of 64 ranks, 0 to 7 of them here, where these are late."""
    judged = verdict(late=lates(ranks), ranks={"all": 64}, **changes)
    return Node(8, world_size=64).judged(judged)


def changes_of(text: str) -> dict[str, Any]:
    """Parse `NAME: VALUE, ...` as YAML."""
    found: dict[str, Any] = yaml.safe_load(f"{{{text}}}")
    return found


def test_late_rank_is_named_as_the_judge_names_it() -> None:
    """Who is late, where and at what cost is one sentence; the figures are next to it."""
    node = Node()
    said = node.judged(verdict())

    assert said["sentence"] == "Rank 2 is slow loading data; 1.00 of 4 GPUs wait for it."
    assert (said["state"], said["reason"], said["judge"]) == ("straggler", None, "join")
    assert (said["alert"], said["runbook"]) == ("RankskewStraggler", "RankskewStraggler")
    late = LateView(2, "all", "data", "persistent", 0.45, 1.0, 30.0, is_here=True)
    assert said["late"] == [asdict(late) | {"gpus_by_stage": {"data": 0.75, "forward": 0.25}}]
    assert said["details"] == [
        "Rank 2 has needed 45% more time than its peers for 30 s, mostly in data; "
        "1.00 GPUs wait for it.",
        "Steps take 1.44 times as long as without it.",
        "GPUs lost: 1.00 to late ranks; 0.25 to ranks that are late in turn, mostly in data; "
        "0.50 to waits that all ranks have in common.",
    ]
    assert (said["slowdown"], said["gpus_lost"]["persistent"]) == (1.44, 1.0)
    # Between verdicts it grows, and so it has before a push.
    later = node.wait(3, silent=(0, 1, 2, 3))["verdict"]
    assert later["late"][0]["late_for_seconds"] == 33.0
    node.said_seconds_ago = 4.0
    assert node.judged(verdict())["late"][0]["late_for_seconds"] == 34.0
    duty = lates("0 duty checkpoint gpus=0.05 every=25 pause=0.09")
    turns = node.judged(verdict(late=duty, gpus_lost={"rotating": 0.5}))
    assert (turns["state"], turns["details"][0][:26]) == ("rotating", "Rank 0 saves every 25 step")


# Of 64 ranks, with 0 to 7 of them here, those that are late | what is said | and in the details.
LATE_RANKS = """
2 pauses every=40 pause=9.97 | \
Rank 2 pauses in data every 40 steps for 10 s; 1.00 of 64 GPUs wait for it. | Steps take 1.44 times
0 duty checkpoint gpus=3.2 every=25 pause=1.02; 5-6 duty eval gpus=3.2 | \
Ranks 5 and 6 evaluate now and then and rank 0 saves every 25 steps for 1.0 s; \
9.60 of 64 GPUs wait for them. |
0-7 node | Ranks 0, 1, 2 and 5 more, like most ranks of their node, are slow loading data; \
8.00 of 64 GPUs wait for them. |
17; 2 | Ranks 17 (not on this node) and 2 are slow loading data; 2.00 of 64 GPUs wait for them. |
# Those that are late alike are named in one breath, the costliest first.
2 gpus=0.7; 3 forward gpus=2; 4 backward; 4 optimizer; 4 eval | \
Rank 3 is slow in the forward pass, \
rank 4 is slow in the backward pass, rank 4 is slow in the optimizer step and 2 more are late; \
5.70 of 64 GPUs wait for them. |
# A mild lateness is shown as such, and is no alarm.
2 mild | No rank is late enough for an alert: rank 2 needs 45% more time than its peers. | \
Rank 2 has needed 45% more time than its peers for 30 s, mostly in data; 1.00 GPUs wait for it.
# Where no wait was measured no GPU is said to wait.
2 unsynced risen; 3 unsynced | It is not known whether a rank is late: \
ranks 2 and 3 need up to 45% more time than before or their peers, but no wait was measured. | \
Rank 3 has needed 45% more time than its peers for 30 s, mostly in data.
# What ranks do for all is quiet until it costs a twentieth of the GPUs; each is told once.
0 duty checkpoint gpus=0.05 every=25 pause=0.09; 12 duty eval gpus=3.1 | \
No rank is late: rank 0 saves every 25 steps for 90 ms, and 0.05 GPUs wait for it. | \
Rank 12 (not on this node) evaluates now and then, and 3.10 GPUs wait for it.
"""


@pytest.mark.parametrize(("ranks", "sentence", "detail"), rows(LATE_RANKS))
def test_late_ranks_are_named_with_their_cost(ranks: str, sentence: str, detail: str) -> None:
    """A rank that wakes nobody is listed, and the job is healthy."""
    said = of_64(ranks)

    assert said["sentence"] == sentence
    assert detail in "\n".join(said["details"])
    assert {each["rank"] for each in said["late"]} == {each.rank for each in lates(ranks)}
    wakes = not sentence.startswith(("No rank is late", "It is not known"))
    assert (said["state"] == "healthy", said["alert"] is None) == (not wakes, not wakes)
    duties = [each["costs_enough"] for each in said["late"] if each["kind"] == "duty"]
    assert all(each is wakes for each in duties)


TOGETHER = """
8-15 node | in_common: node n1 | 8 of 64 ranks (8 to 15: all of node n1, and no others) have been \
slow loading data for 5 min; 8.00 of 64 GPUs wait for them.
# Nothing is known of them; another rank is late in its own way.
40 forward gpus=9; 8-15 node | | Rank 40 (not on this node) is slow in the forward pass and \
8 of 64 ranks (8 to 15), like most ranks of their node, have been slow loading data for 5 min; \
17.00 of 64 GPUs wait for them.
# More are late than a verdict names.
0-31 | ranks: 48, since_seconds: 60, spans: [[0, 47]], in_common: rack r1 or r2 | \
48 of 64 ranks (0 to 47: all of rack r1 or r2, and no others) have been slow loading data for \
60 s; 32.00 of 64 GPUs wait for them.
# Some of them cost too little to be called late, so the set is not.
8-9 | in_common: node n1 | \
Ranks 8 and 9 (not on this node) are slow loading data; 2.00 of 64 GPUs wait for them.
"""


@pytest.mark.parametrize(("ranks", "changes", "sentence"), rows(TOGETHER))
def test_ranks_that_became_late_together_are_named_as_a_set(
    ranks: str, changes: str, sentence: str
) -> None:
    """The sentence names what only these ranks have in common; the figures are next to it."""
    those = replace(Together("data", 8, 300.0, ((8, 15),)), **changes_of(changes))
    said = of_64(ranks, together=(those,))

    assert said["sentence"] == sentence
    assert said["together"] == [asdict(those) | {"spans": [list(*those.spans)]}]


# What the judge says, the state, the alert, the reason, and how the sentence begins.
STATES = """
# Where one of the late ranks is late with its node, the node is what is slow.
2; 3 node | slow_node | RankskewSlowNode | Rank 2 is slow loading data and rank 3, like most
0 duty checkpoint gpus=0.2 every=25 pause=1.02 | straggler | RankskewCheckpointStall | \
Rank 0 saves every 25 steps for 1.0 s
# Ranks that wake come first, though a mild one may cost more.
1 mild; 2 gpus=0.5; 0 duty checkpoint gpus=0.2 every=25 | straggler | RankskewStraggler | \
Rank 2 is slow loading data and rank 0 saves every 25 steps
# The loss to ranks that are late in turn, beyond noise, is worth an alert from 3 % of the GPUs on.
gpus_lost: {rotating: 0.12} | healthy | | No rank is late: the 4 ranks of the job need the same time
gpus_lost: {rotating: 0.13} | rotating | RankskewRotatingImbalance | A different rank is slow in \
each step, mostly loading data; 0.13 of 4 GPUs wait for whichever it is. Compare the work of the
gpus_lost: {rotating: 0.41}, stalls: [{stage: other, share: 0.1, every_steps: 25, seconds: 0.4, \
in_turn: true}] | rotating | RankskewRotatingImbalance | Each rank in turn stops outside the timed \
stages for 0.4 s every 25 steps; 0.41 of 4 GPUs wait for whichever it is. Compare the work of the
gpus_lost: {rotating: 0.41}, stalls: [{stage: other, share: 0.1, every_steps: 25, seconds: 0.4, \
in_turn: true}] | rotating | RankskewRotatingImbalance | Each rank in turn stops outside the timed \
stages for 0.4 s every 25 steps, 100% of it garbage collection; 0.41 of 4 GPUs wait for whichever \
it is. `gc.freeze()` once model and data are loaded; or collect on all ranks at the same step:
# One long stop, of a rank or of all, is told for as long as it is in the means of the last minute.
gpus_lost: {pause: 0.05}, pauses: [{rank: 2, stage: data, step: 9, since_seconds: 20, seconds: 60, \
gpu_seconds: 180}] | pause | | Rank 2 stopped for 60 s loading data until 20 s ago: 180 \
GPU-seconds lost. Look at what its log and `dmesg -T` say of that minute, and
gpus_lost: {pause: 0.04}, pauses: [{rank: null, stage: data, step: 9, since_seconds: 900, \
seconds: 60, gpu_seconds: 240}] | healthy | | No rank is late: the 4 ranks of the job need the same
gpus_lost: {pause: 0.05}, pauses: [{rank: null, stage: data, step: 9, since_seconds: 900, \
seconds: 60, gpu_seconds: 240}] | pause | | A rank stopped for a moment, once or twice; it cost 0.05
# What all stop for is no rank's fault, but no health either; the alert is on what costs the most.
gpus_lost: {shared: 0.05}, stalls: [{stage: data, share: 0.66, every_steps: 32, seconds: 2.0}, \
{stage: checkpoint, share: 0.02, every_steps: 90, seconds: 1.0}] | shared | \
RankskewInputStarvation | All ranks wait together: loading data for 66% of the time, 2.0 s every \
32 steps and writing checkpoints for 2% of the time, 1.0 s every 90 steps; 0.05 of 4 GPUs lost. \
INPUT
gpus_lost: {shared: 0.8, common: 1.0}, stalls: [{stage: h2d, share: 0.2}] | shared | | All ranks \
wait together: copying their batches to the GPU for 20% of the time; 0.80 of 4 GPUs lost. INPUT
gpus_lost: {shared: 1.2}, stalls: [{stage: checkpoint, share: 0.3}] | shared | | All ranks wait \
together: writing checkpoints for 30% of the time; 1.20 of 4 GPUs lost. `df -h` and `iostat -x 1` on
gpus_lost: {shared: 1.2}, stalls: [{stage: eval, share: 0.3}] | shared | | All ranks wait \
together: evaluating for 30% of the time; 1.20 of 4 GPUs lost. py-spy record --duration 60 --pid 100
ranks: {all: 1}, gpus_lost: {} | healthy | | No rank is late: the job has only one. -
# Whatever a rank says of its job costs no other job its place on the page.
ranks: {}, gpus_lost: {common: 5} | shared | RankskewCommunicationBound | All ranks wait for \
communication for 500%
gpus_lost: {rotating: 0.41}, stalls: [{stage: other, share: 0.1, every_steps: 25, seconds: 0, \
in_turn: true}] | rotating | RankskewRotatingImbalance | Each rank in turn stops outside the timed \
stages for 0 ms every 25 steps; 0.41 of 4 GPUs wait for whichever it is. Compare the work of the
# Even ranks that all wait are waiting for the network.
gpus_lost: {shared: 0.8, common: 1.2}, stalls: [{stage: data, share: 0.2}] | shared | \
RankskewCommunicationBound | All ranks wait for communication for 30% of each step. Look for a \
slow link: `ibstat`
# If the judge can name no rank, the page shows the reason.
reason: no_sync | not_judgeable | RankskewNotJudgeable | Cannot judge this job:
reason: no_peers | not_judgeable | | Cannot judge this job:
"""


@pytest.mark.parametrize(("judged", "state", "alert", "words"), rows(STATES))
def test_state_is_what_the_judge_says(judged: str, state: str, alert: str, words: str) -> None:
    """With its reason, its sentence, its alert and what to do first."""
    told = changes_of(judged) if ": " in judged else {}
    node = Node()
    node.change(gc_pause_seconds=1e3 * ("garbage" in words or "seconds: 0," in judged))
    said = node.judged(verdict(late=() if told else lates(judged), **told))

    assert (said["state"], said["alert"] or "") == (state, alert)
    assert said["reason"] == told.get("reason")
    shown = f"{said['sentence']} {said['first_action'] or '-'}"
    assert shown.startswith(words.replace("INPUT", "See with `top` and `iostat -x 1` on a node"))
    assert not alert or said["runbook"] == alert


LONGER = "has taken 2.00 times as long as before for 5 min"
CHANGES = """
step_ratio: 1.031, gpus: 0.24 | \
Forward of peer group pp1 LONGER; steps take 1.03 times as long: 0.24 GPUs lost.
stage: sync, ratio: 1.5 | \
All ranks of the job have waited for each other 1.50 times as long as before for 5 min.
# Some of the ranks: which, and what only they have in common; not more than can be read.
slower: 5, slower_ranks: [0, 1, 2, 3, 4] | \
5 ranks of peer group pp1 (0, 1, 2 and 2 more) became slower together: forward LONGER.
slower: 5, peers: 8, slower_spans: [[0, 4]], in_common: rack r12 | 5 of 8 ranks of peer group pp1 \
(0 to 4: all of rack r12, and no others) became slower together: forward LONGER.
slower: 9, peers: 12, slower_spans: [[0, 3], [5, 5], [7, 8], [10, 11]] | 9 of 12 ranks of peer \
group pp1 (0 to 3, 5, 7, 8 and 2 more) became slower together: forward LONGER.
"""


@pytest.mark.parametrize(("changes", "said"), rows(CHANGES.replace("LONGER", LONGER)))
def test_change_is_told_with_its_cost(changes: str, said: str) -> None:
    """If no rank is late against its peers: what became slower, and by how much.

    After the change itself comes the cause that this node knows, for people and for programs.
    """
    change: Change = replace(CHANGE, **changes_of(changes))
    judged = EVEN | verdict(late=(), changes=(change,), gpus_lost={}, rotating={})
    node = Node()
    shown = node.judged(judged)
    assert (shown["state"], shown["details"]) == ("healthy", [said])
    assert [each["stage"] for each in shown["changes"]] == [change.stage]
    assert shown["change_causes"] == [None]

    node.why_slower = Cause("slow_device", "clocks", 0.9, "the clock is 1.4 GHz, before 1.9", "")
    shown = node.judged(judged)
    assert shown["details"] == [
        said,
        f"On this node, the cause of the longer {change.stage}: the clock is 1.4 GHz, before 1.9.",
    ]
    assert [each["detail"] for each in shown["change_causes"]] == ["clocks"]


def test_what_is_not_judged_or_not_seen_is_told() -> None:
    """Ranks that never stepped, steps that were not compared, and what this torch hides.

    Of the last each thing once, as the ranks say it.
    """
    node, older = Node(), {"runtime_info": {"torch": "2.4.1"}}
    node.change(join_coverage=0.93)
    node.change(0, 1, limitations=["A wait is not timed."], **older)
    node.change(2, limitations=["A wait is not timed.", "None is timed."], **older)

    assert node.judged(EVEN | {"ranks": {"all": 60}, "absent": 4})["details"] == [
        "GPUs lost: 0.50 to waits that all ranks have in common.",
        "4 of 64 ranks take no part in the steps of the others.",
        "The ranks compared only 93% of their steps.",
        "torch 2.4.1 lacks internal APIs that the probe uses. A wait is not timed. None is timed.",
    ]


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
    """With a judge or without; those of a rank that stopped reporting are old."""
    node = Node()
    node.change(2, late_lines=LINES)

    assert node.judged(said)["details"][-1] == IN_CODE
    assert [rank["late_lines"] for rank in node.run(1)["ranks"]] == [[], [], LINES, []]
    assert IN_CODE not in node.wait(20, silent=(2,))["verdict"]["details"]


AT = {"node": "gpu-7", "page": "http://gpu-7:9917/"}
DUMP = "look for a growing cache with `py-spy dump --pid 42` on gpu-7"
GARBAGE = dict(cause="gc", share="0.9", sentence="it collects garbage", first_action=DUMP)
COLLECTS = "Cause: it collects garbage."
PAGE = "The page of the node of rank 17: http://gpu-7:9917/"
OPEN = "Open http://gpu-7:9917/, the live page of the node of rank 17."


@pytest.mark.parametrize(
    ("at", "who", "details", "action"),
    [
        (AT | GARBAGE, "on gpu-7", [COLLECTS, PAGE], DUMP),
        (AT | {"cause": UNKNOWN}, "on gpu-7", ["Cause unknown.", PAGE], OPEN),
        (AT, "on gpu-7", [PAGE.replace(":", ", where the cause is not known:", 1)], OPEN),
        # Of a release that tells no page.
        ({"node": "gpu-7"}, "on gpu-7", [], None),
        ({}, "not on this node", [], None),
        # Anything may be said by a rank; a text that is no number is none.
        (AT | GARBAGE | {"share": "all"}, "on gpu-7", [COLLECTS, PAGE], DUMP),
        (AT | GARBAGE | {"first_action": f"{DUMP}; id"}, "on gpu-7", [COLLECTS, PAGE], OPEN),
    ],
)
def test_late_rank_of_another_node_is_told_with_its_node_page_and_cause(
    at: dict[str, str], who: str, details: list[str], action: str | None
) -> None:
    """As its own exporter says; what that does not know is said to be so."""
    said = Node().judged(verdict(late=tuple(replace(each, at=at) for each in lates("17"))))

    assert said["sentence"] == f"Rank 17 ({who}) is slow loading data; 1.00 of 4 GPUs wait for it."
    assert said["details"][1:-2] == details
    assert said["late"][0]["at"] == at
    assert action in (None, said["first_action"])
    shown, share = said["late"][0]["cause"], {"0.9": 0.9}.get(at.get("share", ""), 0)
    assert (shown and shown["share"]) == (at.get("cause") and share)


CAUSES = {
    "-": None,
    "garbage": Cause("gc", "", 0.9, "it collects garbage", "freeze the heap"),
    "unknown": Cause(UNKNOWN, "", 0.0, "gc is a third of it", "py-spy dump"),
}
ACTIONS = """
2 | - | py-spy dump --pid 102 on gpu-12
2 pauses | - | py-spy record --duration 60 --pid 102 -o pauses.svg on gpu-12
17 | - | Open the live page of the node of rank 17, the instance of \
rankskew_rank_info{job_id="demo",rank="17"}.
# That of this node first.
17; 2 | - | py-spy dump --pid 102 on gpu-12
2 | garbage | freeze the heap
2 | unknown | py-spy dump
2 node | unknown | top -H on gpu-12: what runs there that does not belong to the job?
"""


@pytest.mark.parametrize(("ranks", "cause", "action"), rows(ACTIONS))
def test_late_rank_is_mended_or_looked_at(ranks: str, cause: str, action: str) -> None:
    """The first action follows the cause; without one it inspects code, node or the node's page."""
    node = Node()
    node.cause = CAUSES[cause]

    assert node.judged(verdict(late=lates(ranks)))["first_action"] == action


def test_cause_is_told_with_its_figures() -> None:
    """An unknown cause is reported as such; a near-certain one comes without other guesses."""

    def told(cause: Cause) -> dict[str, Any]:
        node = Node()
        node.cause = cause
        return node.judged(verdict())

    said, not_known = told(CAUSE), replace(CAUSE, cause=UNKNOWN, sentence="gc is a third of it")
    assert said["details"][1] == f"Cause: {CAUSE.sentence}."
    shown = json.loads(json.dumps(asdict(CAUSE))) | {"unit": "hertz"}
    assert said["late"][0]["cause"] == shown
    assert [each["cause"] for each in shown["others"]] == ["cpu"]
    assert told(replace(CAUSE, share=0.99))["late"][0]["cause"]["others"] == []
    assert told(not_known)["details"][1] == "Cause unknown: gc is a third of it."
    assert told(replace(not_known, sentence=""))["details"][1] == "Cause unknown."
