"""Jobs, ranks and GPUs as the page gets them, and the states that need no judge.

A job starts, stands still, loses ranks or cannot be judged.
"""

from dataclasses import replace
from typing import Any

import pytest

from exporter.cgroups import Cgroup
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes.process import Process
from exporter.vocabulary.thresholds import Thresholds
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.live_node import EVEN, GPU, Node, rows, served, stepped
from tests.exporter.node import node
from tests.exporter.snapshots import CHANGE, late, numbered, snapshot, verdict

PROCESSES = (GpuProcess(10), GpuProcess(11))
TROUBLED = replace(
    GPU, index=3, uuid="GPU-3", throttle_reasons=0x21, pcie_link_width=8, processes=PROCESSES
)


def page_with(
    *processes: Process,
    held: tuple[Snapshot, ...] = (),
    gpus: tuple[GpuSample, ...] = (TROUBLED,),
    processes_hang: bool = False,
) -> dict[str, Any]:
    """Return what the page gets from a node where *processes* run and *held* were pushed."""
    here = Node(ranks=0)
    here.nvml.sample = node(*gpus).sample
    here.processes |= {each.pid: each for each in processes}
    here.processes_hang = processes_hang
    for each in held:
        here.store.put(each)
    here.view.sample(here.now, here.now)
    return served(here.view)


@pytest.mark.parametrize("number", [0.0, 5e-324, 1e-310, 1e15])
def test_page_has_a_number_whatever_a_rank_reports(number: float) -> None:
    """No sum, mean or ratio of what is taken in is infinite or no number, which JSON lacks."""
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
        node.pass_second()
    (job,) = served(node.view)["jobs"]

    said, ranks = job["verdict"], job["ranks"]
    shown = [job["step_seconds"], said["slowdown"], said["late"][0]["gpus_lost"]]
    assert None not in [*shown, *(rank["wait_seconds"] for rank in ranks)]


def test_gpu_is_shown_in_base_units_with_its_ranks() -> None:
    """A tile has the readings, why the clock is low, the link's width, strangers, and the ranks."""
    live = page_with(process(10, torchrun(0)), process(11, {}, name="miner"))

    assert live["gpus"] == [
        {
            **{"gpu": 3, "gpu_uuid": "GPU-3", "name": "NVIDIA H100", "up": True},
            **{"utilization_ratio": 0.975, "temperature_celsius": 71, "power_watts": 654.321},
            **{"memory_used_bytes": 60 * 10**9, "memory_total_bytes": 80 * 10**9},
            **{"sm_clock_hertz": 1.9e9, "throttle_reasons": ["sw_thermal_slowdown"]},
            **{"pcie_link_width": 8, "pcie_link_width_max": 16, "foreign_processes": 1},
            "ranks": [{"job_id": "llama", "rank": 0}],
        }
    ]
    assert (live["host"], live["grafana_url"]) == ("gpu-12", "http://grafana:3000")
    # A lost GPU keeps its tile; nothing is made up for it.
    (gpu,) = page_with(gpus=(GpuSample(0, up=False, uuid="GPU-0"),))["gpus"]
    assert gpu["up"] is False
    assert gpu["utilization_ratio"] is gpu["power_watts"] is gpu["foreign_processes"] is None
    assert gpu["throttle_reasons"] == gpu["ranks"] == []


def test_job_without_the_probe_is_listed() -> None:
    """Processes that were started as ranks are a job, with a hint on how to start the probe."""
    (job,) = page_with(process(10, torchrun(2)))["jobs"]
    (rank,) = job["ranks"]
    verdict = job["verdict"]

    assert (job["job_id"], job["probed"], job["world_size"]) == ("llama", False, 4)
    assert (verdict["state"], verdict["alert"]) == ("no_probe", None)
    assert verdict["runbook"] == "RankskewNotJudgeable"
    assert "1 of 4 ranks run on this node" in verdict["sentence"]
    assert "-m rank_probe train.py" in verdict["first_action"]
    assert (rank["rank"], rank["pid"], rank["host"], rank["gpu"]) == (2, 10, "gpu-12", 3)
    # A job of which only some ranks report is not complete, and the others are listed.
    processes = process(10, torchrun(0)), process(11, torchrun(1))
    (job,) = page_with(*processes, held=(snapshot(pid=10),))["jobs"]
    assert job["verdict"]["state"] == "ranks_missing"
    assert job["verdict"]["sentence"] == "1 rank runs on this node without the probe."
    assert [rank["rank"] for rank in job["ranks"]] == [0, 1]
    # GPUs alone are no job.
    assert page_with(gpus=())["jobs"] == page_with()["jobs"] == []


def test_job_without_the_probe_that_does_nothing_is_told() -> None:
    """A job is idle if all its GPUs are busy at idle power, or if it holds GPUs it does not use."""
    here = Node(ranks=0, gpus=2)
    busy = {"gpu_busy_percent": 100.0, "power_limit_milliwatts": 700_000}
    cold, hot = ({**busy, "power_milliwatts": power} for power in (70_000, 600_000))
    given = torchrun(0, NVIDIA_VISIBLE_DEVICES="GPU-0,GPU-1", TORCHELASTIC_RUN_ID="demo")
    here.processes[100] = process(100, given, cgroup=Cgroup(pod_uid="p"))
    said = []
    for each, seconds in (
        ((cold, hot), 310),
        ((cold, cold), 200),
        ((cold, cold), 110),
        ((hot, {"processes": ()}), 610),
        (({"processes": ()}, {"processes": ()}), 10),
    ):
        here.nvml.sample = node(*map(lambda gpu, new: replace(gpu, **new), here.gpus, each)).sample
        verdict = here.wait(seconds)["verdict"]
        said.append((verdict["state"], verdict["alert"], verdict["first_action"][:15]))

    assert said == [
        *[("no_probe", None, "Start the job w")] * 2,
        ("stands_still", "RankskewGpusIdle", "py-spy dump --p"),
        *[("unused_gpus", "RankskewGpusIdle", "Compare its ran")] * 2,
    ]
    assert verdict["sentence"].startswith("It holds GPUs on which no process has run for ten min")


def test_rank_has_the_places_to_look_at() -> None:
    """A rank has its GPU index and its PID on the node, not in the pod; without NVML, the probe's.

    While /proc hangs, GPUs are shown without their ranks, and the probes' reports as usual.
    """
    inside = snapshot(pid=1, rank_info={"gpu_uuid": "GPU-3", "local_rank": "0"}, world_size=1)
    (job,) = page_with(process(10, torchrun(0), namespace_pid=1), held=(inside,))["jobs"]
    (rank,) = job["ranks"]
    assert job["probed"] is True
    assert (rank["pid"], rank["host"], rank["gpu"], rank["local_rank"]) == (10, "gpu-12", 3, "0")

    (job,) = page_with(held=(snapshot(pid=4711),), gpus=())["jobs"]
    assert (job["ranks"][0]["pid"], job["ranks"][0]["gpu"]) == (4711, None)

    live = page_with(held=(snapshot(),), processes_hang=True)
    assert [gpu["ranks"] for gpu in live["gpus"]] == [[]]
    assert [job["job_id"] for job in live["jobs"]] == ["llama"]


def test_hang_points_to_the_dumps_that_torch_will_write() -> None:
    """The process was started with their place; what a shell would read as more is not shown."""
    waits = {"stage": "sync", "stage_elapsed_seconds": 160.0, "last_step_timestamp_seconds": 900.0}
    told = (
        "When a collective times out, torch writes a dump of each rank to /scratch/fr on its node: "
        "rankskew flight-recorder /scratch/fr"
    )
    for file in ("/scratch/fr/rank_", "/scratch/$(reboot)/rank_", "rank_"):
        rank = process(10, torchrun(0) | {"TORCH_FR_DUMP_TEMP_FILE": file})
        (job,) = page_with(rank, held=(snapshot(pid=10, **waits),))["jobs"]
        assert job["verdict"]["state"] == "hung"
        assert job["verdict"]["details"] == ([told] if file == "/scratch/fr/rank_" else [])


def test_bars_are_seconds_per_step_of_the_last_minute() -> None:
    """Bars are in step order and add up to the step; earlier and first steps are not drawn.

    Counters of a new process are not compared with those of the old one. Slow steps are averaged
    over as many as a mean needs, however long they take.
    """
    node = Node()
    assert node.run(1, steps=1)["ranks"][0]["stage_seconds"] is None
    node.step({"forward": 60.0})
    node.wait()
    job = node.run(60)
    rank = job["ranks"][2]
    assert rank["stage_seconds"] == pytest.approx(
        {"data": 0.19, "forward": 0.1, "backward": 0.2, "sync": 0.01}
    )
    assert list(rank["stage_seconds"]) == ["data", "forward", "backward", "sync"]
    assert rank["wait_seconds"] == pytest.approx(0.01)
    assert rank["step_seconds"] == pytest.approx(job["step_seconds"])
    assert rank["steps"] == job["steps"] == 122

    node.states = {rank: replace(node.fresh(rank), pid=200 + rank) for rank in node.states}
    assert node.wait()["ranks"][0]["stage_seconds"] is None
    for _ in range(12):
        node.step({"data": 3.0, "forward": 24.0, "sync": 3.5})
        job = node.wait(30)
    assert job["ranks"][1]["stage_seconds"]["data"] == pytest.approx(3.0)


WARMING_UP = verdict(reason="warming_up", late=())
ALL = (0, 1, 2, 3)


@pytest.mark.parametrize("reason", ["warming_up", "join_incomplete", "no_join"])
def test_young_job_starts_and_an_older_one_has_the_reason(reason: str) -> None:
    """A judge has a quarter of an hour to warm up, and an incomplete join to catch up."""
    node = Node()
    node.said = {"warming_up": WARMING_UP, "join_incomplete": EVEN, "no_join": None}[reason]
    if reason == "join_incomplete":
        node.change(join_coverage=0.4)
    said, later = node.run(30)["verdict"], node.run(871, steps=1)["verdict"]

    assert (said["state"], said["reason"], said["late"]) == ("starting", reason, [])
    assert (later["state"], later["reason"]) == ("not_judgeable", reason)
    assert said["sentence"].startswith("Cannot judge this job")
    if reason == "no_join":
        assert "the ranks do not compare their steps, and no node has two peers" in said["sentence"]
        assert said["first_action"].startswith("Read the log of rank 0")


def test_job_without_a_step_is_starting() -> None:
    """The page says for how long, and lists the last events, grouping ranks with the same one.

    After a quarter of an hour it shows an alert, and suggests a stack dump.
    """
    node = Node()
    for rank, name in enumerate(("rendezvous", "rendezvous", "init", "rendezvous")):
        began = {"began_timestamp_seconds": node.now - 10.0 * rank, "seconds": None}
        node.change(rank, lifecycle_events=[{"number": 1, "event": name, **began}])
    said = node.wait(41)["verdict"]
    assert (said["state"], said["alert"]) == ("starting", None)
    assert (said["runbook"], said["first_action"]) == ("RankskewSlowStart", None)
    assert said["sentence"] == "Starting for 41 s: no rank on this node has finished a step yet."
    assert said["details"] == [
        "Last event of ranks 0, 1 and 3: rendezvous began 71 s ago.",
        "Last event of rank 2: init began 61 s ago.",
    ]

    said = node.wait(860)["verdict"]
    assert (said["state"], said["alert"]) == ("starting", "RankskewSlowStart")
    assert said["first_action"] == "py-spy dump --pid 100 on gpu-12"
    # Once it has finished its first step it may warm up, however old it is.
    assert node.judged(WARMING_UP, 5)["state"] == "starting"


def test_reason_without_a_verdict_is_told_apart() -> None:
    """One rank has no peers; a join that has just begun is not a failure.

    A rank that times nothing is not judged, and its standing counters are no alarm.
    """
    assert Node(ranks=1).judged(None)["reason"] == "no_peers"
    node = Node()
    node.said = None
    assert node.run(1, steps=1)["verdict"]["reason"] == "warming_up"
    node.change(joined_seconds=0.0)
    assert node.run(5)["verdict"]["reason"] == "warming_up"
    node.change(join_coverage=0.0)
    assert node.run(5)["verdict"]["reason"] == "no_join"

    node.change(2, level="off")
    job = node.wait(40)
    assert (job["verdict"]["state"], job["verdict"]["reason"]) == ("not_judgeable", "off")
    assert "rankskew control JOB_ID stages turns it on" in job["verdict"]["sentence"]
    assert job["verdict"]["first_action"] == "`rankskew control demo stages` on each node."
    assert [rank["level"] for rank in job["ranks"]] == ["stages", "stages", "off", "stages"]


def test_node_names_the_late_rank_where_no_join_speaks() -> None:
    """The page says whose verdict it shows, and what that cannot see."""
    node = Node(world_size=16)
    node.said = None
    node.change(block_steps=64, block_seconds={"data": 0.1, "forward": 0.4, "sync": 0.0})
    node.change(2, block_seconds={"data": 0.2, "forward": 0.4, "sync": 0.0})
    early = node.run(101, steps=1)["verdict"]
    node.change(3, no_join="file_store")
    said = node.run(31, steps=1)["verdict"]

    assert (early["state"], early["sentence"]) == ("healthy", "No rank on this node is late.")
    assert (said["state"], said["judge"], said["coverage"]) == ("straggler", "node", None)
    assert said["sentence"].startswith("Rank 2 is slow loading data; ")
    *_, own, why = said["details"]
    assert own.startswith("The job does not compare the steps of its ranks, so")
    assert "its ranks met through a file" in why


def test_ranks_that_were_never_seen_are_missing() -> None:
    """A verdict on a part of the job is no good news about all of it.

    A rank of this node that reports and never steps, an evaluator, is not missing.
    """
    node = Node(ranks=4, world_size=8)
    node.said = EVEN | {"absent": 4, "gpus_lost": {"common": 1.2}}
    assert node.run(30)["verdict"]["alert"] == "RankskewCommunicationBound"
    said = node.run(120)["verdict"]
    assert (said["state"], said["alert"]) == ("ranks_missing", "RankskewRanksMissing")
    assert said["sentence"].startswith("4 of 8 ranks have never taken part in a step")
    assert said["details"][0].startswith("All ranks wait for communication")
    assert said["first_action"].startswith("Compare the job's nodes with `")

    node = Node()
    node.said = EVEN | {"absent": 1}
    for steps in range(150):
        node.change(0, 1, 2, steps=steps, last_step_timestamp_seconds=node.now)
        node.pass_second()
    assert node.wait()["verdict"]["state"] == "healthy"


def test_silent_rank_is_missing_and_a_finished_job_is_finished() -> None:
    """While others still step, the silence of one comes before what the judge says of them.

    So does that of a killed job; a clean end is neither a hang nor a silence, however long ago.
    """
    node = stepped()
    for _ in range(12):
        node.step()
        said = node.wait(silent=(2,))["verdict"]
    assert (said["state"], said["alert"]) == ("ranks_missing", "RankskewRanksMissing")
    quiet = "Rank 2 has not reported for 12 s: dead, stopped, or unable to reach this exporter."
    assert said["sentence"] == quiet
    assert said["details"][0].startswith("No rank is late")

    assert node.wait(20, silent=ALL)["verdict"]["sentence"].startswith("No report for 20 s: ")
    node.change(finished=True)
    node.wait()
    said = node.wait(60, silent=ALL)["verdict"]
    assert (said["sentence"], said["first_action"]) == ("Finished after 72 steps.", None)


def test_wrong_clock_makes_nobody_silent() -> None:
    """On a node whose wall clock is behind, or jumps, every rank is heard from now, and steps."""
    node = Node()
    node.behind_seconds = 90.0
    before = node.run(70)
    for jump in (0.0, 3_600.0, -3_600.0):
        node.view.sample(node.now, node.now + jump)
        (job,) = served(node.view)["jobs"]
        assert job["verdict"]["state"] == "healthy"
        assert job["step_seconds"] == before["step_seconds"]
        for rank in job["ranks"]:
            assert (rank["silent"], rank["heartbeat_age_seconds"]) == (False, 0.0)
            assert rank["last_step_age_seconds"] == 1.0


WAITS = {"stage": "sync", "share": 1.0}
IS_IN: dict[str, dict[str, Any]] = {
    "barrier": {"stage": "sync", "late_lines": [WAITS | {"place": "done (train.py:64)"}]},
    "step": {"stage": "sync", "late_lines": [WAITS | {"place": "step (train.py:41)"}]},
    "end": {"finished": True},
    # An evaluator, which has never stepped, hides no hang.
    "evaluator": {"stage": "other", "last_step_timestamp_seconds": None},
    "behind": {"stage": "forward", "steps": 59},
}
# Of four ranks that wait in sync, what is set for some of them, and the seconds that pass | the
# state, the beginning of the sentence, and the first action.
STANDING = """
2 data 9 | healthy | No rank is late | -
2 data 11 | not_judgeable | No rank on this node has finished a step for 12 s: rank 2 is in data. \
| -
2 data 119 | not_judgeable | No rank on this node has finished a step for 2 min: | -
2 data 122 | hung | HUNG: rank 2 is in data; 3 of 4 ranks wait in sync. | \
py-spy dump --pid 102 on gpu-12
# A minute of silence is enough, and comes first before. A stopped process cannot report where it
# is: is there one, and in which state?
2 silent 60 | ranks_missing | Rank 2 has not reported for 60 s: | -
2 silent 61 | hung | No step for 62 s, 4 of 4 GPUs wait: rank 2 has been silent for 61 s; 3 of 4 \
ranks wait in sync. | ps -o pid,stat,etime,wchan:32,args -p 102 on gpu-12
# Where one rank ends before the others, its log says why.
1 end 122 | hung | HUNG: rank 1 has finished; 3 of 3 ranks wait in sync. | \
Read the log of rank 1 on gpu-12: it has finished.
3 evaluator 122 | hung | HUNG: every rank on this node that has finished a step waits in sync; of \
those that have not, rank 3 is in other. | \
py-spy dump --pid 100 on gpu-12, and the same for every other rank: do all wait in the same \
collective?
0 sync 122 | hung | HUNG: all of them wait in sync, so the collective itself is stuck. | \
py-spy dump --pid 100 on gpu-12, and the same for every other rank: do all wait in the same \
collective?
# One of them has called another collective.
3 barrier 122; 0-2 step | hung | HUNG: rank 3 is in sync at done (train.py:64), and most others \
at step (train.py:41); 4 of 4 ranks wait in sync. | py-spy dump --pid 103 on gpu-12
# No rank waits for another, so nothing is lost: nobody can be judged.
0-3 eval 150 | not_judgeable | No rank on this node has finished a step for 3 min: rank 0 is in \
eval, rank 1 is in eval and rank 2 is in eval and 1 more. | -
# Nor is any rank seen to wait over NCCL where its device is not known: after half an hour it hangs.
0-3 forward 1799 | not_judgeable | No rank on this node has finished a step for 30 min: | -
0-3 forward 1802 | hung | No step for 30 min, 4 of 4 GPUs wait: rank 0 is in forward, rank 1 is in \
forward and rank 2 is in forward and 1 more; none of 4 ranks wait in sync. | -
# All stand alike; one has finished a step fewer.
2 behind 1802; 0-1 forward; 3 forward | hung | No step for 30 min, 4 of 4 GPUs wait: rank 2 is in \
forward, rank 0 | -
"""


@pytest.mark.parametrize(("held", "state", "sentence", "action"), rows(STANDING))
def test_job_that_stands_still_names_the_rank_outside_sync(
    held: str, state: str, sentence: str, action: str
) -> None:
    """A hang costs all GPUs of the job, and the first action inspects what holds it up."""
    node = stepped()
    for rank, (where, *_) in numbered(held):
        node.change(rank, **IS_IN.get(where, {"stage": where}))
    (rank, (where, seconds)), *_ = numbered(held)
    said = node.wait(int(seconds), (rank,) if where == "silent" else ())["verdict"]

    assert said["state"] == state
    assert said["gpus_lost"].get("hung") == (4.0 if state == "hung" else None)
    begins = sentence.replace("HUNG", "No step for 2 min, 4 of 4 GPUs wait")
    assert said["sentence"].startswith(begins)
    assert action == "-" or said["first_action"] == action


FAR = {"rank": "6", "node": "gpu-7", "page": "http://gpu-7:9917/"}
IT_IS_IN_DATA = "rank 6 (on gpu-7) is in data at load (train.py:41), waiting for a socket"
IS_IN_DATA = FAR | {"stage": "data", "line": "load (train.py:41)", "state": "socket"}


@pytest.mark.parametrize(
    ("suspect", "waited", "said"),
    [
        (IS_IN_DATA, 14, f"{IT_IS_IN_DATA}."),
        (IS_IN_DATA, 130, f"{IT_IS_IN_DATA}; 4 of 4 ranks on this node wait in sync."),
        (FAR, 14, "rank 6 (on gpu-7) has been silent."),
        (FAR | {"stage": "checkpoint"}, 130, "rank 6 (on gpu-7) is in checkpoint."),  # No hang yet.
        ({"rank": "6"}, 14, "rank 6 (not on this node) has been silent."),
        (IS_IN_DATA | {"rank": "1"}, 14, "rank 0 is in sync, rank 1 is in sync and rank 2 is in"),
        (IS_IN_DATA | {"rank": "<b>"}, 14, "rank 0 is in sync, rank 1 is in sync and rank 2 is in"),
        # Of a release that tells no suspect, or while all ranks wait.
        ({}, 130, "every rank on this node waits in sync, so the cause is not on this node."),
    ],
)
def test_job_that_waits_for_a_rank_of_another_node_names_it(
    suspect: dict[str, str], waited: int, said: str
) -> None:
    """Its node, stage, line of code and page, on every node."""
    node = stepped(world_size=8)
    node.said = EVEN | {"suspect": suspect}
    told = node.wait(waited)["verdict"]

    assert f": {said}" in told["sentence"]
    is_far = suspect.get("rank") == "6"
    assert told["suspect"] == (suspect if is_far else {})
    if " wait in sync" in said:
        assert told["first_action"] == f"Open {FAR['page']}, the live page of the node of rank 6."
    # It is told no more when the job goes on.
    assert node.run(3)["verdict"]["suspect"] == {}


def test_rank_that_is_stuck_is_told_with_its_line() -> None:
    """The sentence names the line that a stuck rank is in and, if known, what it waits for."""
    node = stepped()
    line = {"stage": "data", "place": "load (train.py:41)", "share": 1.0}
    waits = {"stage": "data", "state": "lock", "share": 1.0, "place": ""}
    node.change(late_lines=[line])  # Those that wait are late elsewhere.
    node.change(2, stage="data")
    said = node.wait(15)["verdict"]["sentence"]
    assert said.endswith(": rank 2 is in data at load (train.py:41).")
    node.change(2, thread_states=[waits])
    assert "at load (train.py:41), waiting for a lock;" in node.wait(110)["verdict"]["sentence"]


def test_hang_tells_where_its_ranks_are_and_what_they_did_last() -> None:
    """What a rank did last is where to look first: here it has been saving all the time.

    One that moved on ten seconds later is not the one that the others wait for; a rank alone waits
    for nobody: a collective of one, or something that calls itself one.
    """
    node = stepped()
    began = {"began_timestamp_seconds": node.now - 90.0, "seconds": None}
    saving = {"number": 4, "event": "checkpoint", **began}
    node.change(2, stage="checkpoint", lifecycle_events=[saving])
    early = node.wait(1_701)["verdict"]
    job = node.wait(101)

    assert (early["state"], early["reason"]) == ("not_judgeable", "no_steps")
    said = job["verdict"]["sentence"]
    assert "rank 2 is in checkpoint (its last event: checkpoint began 32 min ago); 3 of 4" in said
    saves = {"event": "checkpoint", "state": "began", "age_seconds": 1_892.0, "seconds": None}
    assert [rank["last_event"] for rank in job["ranks"][1:3]] == [None, saves]
    node.change(1, stage="forward", stage_elapsed_seconds=1_792.6, steps=0)
    assert "32 min ago) and rank 1 is in forward" in node.wait()["verdict"]["sentence"]
    said = stepped(ranks=1).wait(122)["verdict"]["sentence"]
    assert said.startswith("No step for 2 min, its GPU waits: ")


def test_wait_is_a_hang_after_ten_steps_or_what_the_operator_says() -> None:
    """An override of the rules is one of the page."""
    for step_seconds, limits, waited in (
        (20.0, {}, 199),
        (0.5, {("demo", "hang_seconds"): 20.0}, 19),
    ):
        node = Node(ranks=2, thresholds=Thresholds(limits))
        node.said = EVEN | {"step_seconds": step_seconds}
        node.run(30)
        assert node.wait(waited)["verdict"]["state"] != "hung"
        assert node.wait(1)["verdict"]["state"] == "hung"
