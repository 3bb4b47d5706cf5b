"""A job at one moment, from the series that the rules record, its alerts and what changed."""

from typing import Final

import pytest

from rankskew.client.fetch import Trouble
from rankskew.diagnose.findings import NO_CAUSE
from rankskew.diagnose.from_prometheus import read_prometheus
from rankskew.diagnose.model import BALANCED, CANNOT_TELL, FOUND, CannotTell
from rankskew.diagnose.render import facts
from tests.rankskew.client.servers import serving
from tests.rankskew.diagnose.recorded import WHO, alert, ask, losses, straggler
from tests.rankskew.top import fake_prometheus as fake
from tests.rankskew.top.fake_prometheus import NOW, FakePrometheus, Series, series


def test_late_rank_is_told_with_all_that_is_known() -> None:
    """Where it is, since when, its line of code, its cause, and the commands with its process."""
    said = ask(straggler())
    (finding,) = said.findings
    place, cause, lost = finding.place, finding.cause, said.loss

    assert (said.outcome, said.state, said.cost_per_hour) == (FOUND, "straggler", 0.75)
    assert (finding.rank, finding.stage, finding.since_seconds) == (6, "data", 240.0)
    assert (place.node, place.pid, place.gpu) == ("n2", 4006, "2")
    assert cause is not None
    assert (cause.cause, cause.detail, cause.share) == ("input", "workers", 0.97)
    assert cause.sentence == "3 of its workers never wait, 0 of its peers'"
    assert (cause.figure, cause.value, cause.peers_value) == ("saturated_workers", 3.0, 0.0)
    assert [line.place for line in finding.lines] == ["f (c.py:1)"]
    assert finding.first == "`py-spy dump --pid 4006` on n2"
    assert finding.steps[0].do.startswith("`py-spy dump --pid 4006` on n2")
    assert finding.links[0].endswith("docs/playbook.md#input")
    assert lost is not None
    assert [part.gpus for part in lost.parts] == [1.6, 0.06, 0.34]
    (rank,) = lost.parts[0].parts
    assert sum(part.gpus for part in rank.parts) == pytest.approx(1.6)
    assert said.unjudged == ()


def test_node_has_its_name_instead_of_its_address() -> None:
    """As what is read and typed has the name."""
    address = {"instance": "10.0.0.2:9917"}
    samples = [
        (labels | address if "instance" in labels else labels, value)
        for labels, value in straggler()
    ]
    name = series("rankskew_exporter_build_info", nodename="gpu-2", job_id="", **address)
    (finding,) = ask([*samples, name]).findings

    assert finding.place.node == "gpu-2"
    assert finding.steps[0].do.startswith("`py-spy dump --pid 4006` on gpu-2")
    assert dict(facts(finding, NOW))["Where"].startswith("gpu-2, GPU 2, ")


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        pytest.param([], "unknown", id="none yet"),
        pytest.param(fake.cause(cause="gravity", detail=""), "gravity", id="of a later release"),
        pytest.param(fake.cause(cause="unknown", share=0.0, detail=""), "unknown", id="not known"),
    ],
)
def test_cause_without_advice_has_that_on_an_unknown_one(cause: list[Series], told: str) -> None:
    """Nothing is derived here: what the exporter says is repeated."""
    samples = [each for each in straggler() if "cause" not in each[0]["__name__"]]
    (finding,) = ask([*samples, *cause]).findings

    assert finding.what == "unknown"
    assert finding.cause is not None
    assert (finding.cause.cause, finding.cause.detail) == (told, "")
    assert (finding.cause == NO_CAUSE) == (not cause)
    assert str(finding.first).startswith("`py-spy dump --pid 4006`")


def another(rank: int, gpus_lost: float, kind: str, stage: str) -> list[Series]:
    """Return what the rules record of one more late rank."""
    who = WHO | {"rank": str(rank)}
    return [
        series("rank:rankskew_late:ratio", 0.2, kind=kind, stage=stage, **who),
        series("rank:rankskew_gpus_lost:sum", gpus_lost, **who),
        series("rank:rankskew_told_gpus_lost:sum", gpus_lost, **who),
    ]


@pytest.mark.parametrize(
    ("why", "told"),
    [({4: "cpu", 5: "network", 6: "cpu"}, "cpu"), ({4: "cpu", 5: "network"}, "network")],
)
def test_slow_node_is_one_finding_with_the_cause_of_most_of_its_ranks(
    why: dict[int, str], told: str
) -> None:
    """One of them may have another one besides; where they are as many, the costliest's counts."""
    gpus = {rank: 0.9 if rank == 5 else 0.2 for rank in why}
    samples = [series("job_severity:rankskew_told:max5m", 0.05, severity="critical")]
    for rank, lost in gpus.items():
        samples += another(rank, lost, "node", "forward")
        samples += fake.cause(rank, why[rank], 0.8, detail="")
    (finding,) = ask([*fake.job(state="slow_node"), *samples]).findings

    assert (finding.rank, finding.ranks, finding.place.node) == (None, tuple(why), "n2")
    assert finding.what == told
    assert finding.gpus_lost == pytest.approx(sum(gpus.values()))


def test_judge_of_each_node_alone_is_told() -> None:
    """Without the join only ranks of one node are compared."""
    (told,) = ask([*straggler(), series("rankskew_job_judge_info", judge="node")]).unjudged

    assert "those of its node only" in told


def test_late_rank_that_costs_a_tenth_of_another_waits() -> None:
    """The costliest is mended first; the others are named."""
    said = ask([*straggler(), *another(3, 0.1, "persistent", "data")])

    assert [finding.rank for finding in said.findings] == [6]
    assert said.more == (
        "Late as well: rank 3. They cost less: mend the above first, and look again.",
    )


@pytest.mark.parametrize(
    ("kinds", "what"),
    [
        ({"rotating": 2.0}, "rotating"),
        ({"common": 2.5}, "common"),
        ({"group": 1.2}, "group"),
        ({"group": 0.7, "common": 1.9, "rotating": 0.7}, None),
    ],
)
def test_loss_without_a_late_rank(kinds: dict[str, float], what: str | None) -> None:
    said = ask([*fake.job(), *losses(**kinds)])

    assert [finding.what for finding in said.findings] == ([what] if what else [])
    assert said.outcome == (FOUND if what else BALANCED)


def reason(name: str) -> Series:
    return series("job_reason:rankskew_not_judgeable:bool", reason=name)


SUSPECT: Final = series("rank_stage:rankskew_hang_suspect:group", stage="data", **WHO)
FINISHED: Final = series("rank_stage:rankskew_hang_suspect:group", stage="finished", **WHO)
HUNG: Final = series("job:rankskew_hung:seconds", 300.0)
SILENT: Final = series("rank:rankskew_silent_seconds:max", 75.0, **WHO)
DOWN: Final = series("node:rankskew_exporter_down:group", instance="n2:9917")
UNPROBED: Final = series("rankskew_gpu_rank_info", source="environ", **WHO)
STARTED: Final = series("job:rankskew_run_seconds:max", 60.0)
LONG_AGO: Final = series("job:rankskew_starting_seconds:max", 1000.0)


@pytest.mark.parametrize(
    ("state", "samples", "what", "first", "outcome"),
    [
        ("hung", [SUSPECT, HUNG], "hung", "`py-spy dump --pid 4006` on n2", FOUND),
        ("hung", [FINISHED, HUNG], "hung_finished", "read its log on n2", FOUND),
        ("hung", [HUNG], "hung_together", "`py-spy dump --pid PID` of each rank", FOUND),
        ("hung", [HUNG, *fake.late()], "hung_together", "`py-spy dump --pid PID` of each", FOUND),
        ("exporter_down", [DOWN], "exporter_down", "`systemctl status", FOUND),
        ("ranks_missing", [SILENT], "ranks_silent", "`ps -p 4006`, then `dmesg", FOUND),
        ("ranks_missing", [UNPROBED], "ranks_without_probe", "list them: `rank", FOUND),
        ("ranks_missing", [], "ranks_missing", "compare the job's nodes", FOUND),
        ("starting", [STARTED], "starting", "wait", CANNOT_TELL),
        ("starting", [LONG_AGO], "slow_start", "`py-spy dump --pid 4006` on n2", FOUND),
        ("not_judgeable", [reason("no_sync")], "no_sync", "mark the coll", CANNOT_TELL),
        ("not_judgeable", [reason("off")], "off", "`rankskew control llama", CANNOT_TELL),
        ("no_probe", [], "no_probe", "start the job with the probe", CANNOT_TELL),
        ("finished", [], "finished", "ask about a time", CANNOT_TELL),
    ],
)
def test_every_other_state_says_what_to_do_first(
    state: str, samples: list[Series], what: str, first: str, outcome: str
) -> None:
    """What it is, which rank, what to do first, and whether anything could be told.

    A rank that was late before is not what a job hangs on.
    """
    said = ask([*fake.job(state=state), *fake.rank(6, "n2:9917"), *samples])

    assert said.findings[0].what == what
    assert said.findings[0].first is not None
    assert said.findings[0].first.startswith(first)
    assert said.outcome == outcome


PENDING: Final = {"state": "pending", "rank": "6", "instance": "n2:9917"}


@pytest.mark.parametrize(
    ("alerts", "what", "sentence"),
    [
        pytest.param(
            [alert("RankskewNewThing", instance="n2:9917")],
            *("unknown", "Node n2: new thing."),
            id="of a node, and of another release",
        ),
        pytest.param(
            [alert("RankskewNewThing")], "unknown", "The job: new thing.", id="of the job"
        ),
        pytest.param(
            [
                alert("RankskewNumaMismatch", severity="info", **PENDING),
                alert("RankskewNvlinkDown", **PENDING),
            ],
            *("nvlink_down", "Rank 6 on n2: "),
            id="information only when it fires",
        ),
    ],
)
def test_alert_is_a_finding(alerts: list[Series], what: str, sentence: str) -> None:
    """What has just begun may be over soon, unless it is urgent."""
    (finding,) = ask([*fake.job(), *alerts]).findings

    assert finding.what == what
    assert finding.sentence.startswith(sentence)


def test_alert_about_a_gpu_is_a_finding() -> None:
    """A job may be healthy on a GPU that is about to fail; its alert has the rank on it."""
    labels = {"gpu": "2", "gpu_uuid": "GPU-6", "nodename": "gpu-2"} | WHO
    (finding,) = ask([*fake.job(), alert("RankskewGpuEccErrors", **labels)]).findings

    assert (finding.what, finding.rank, finding.place.gpu) == ("gpu_memory", 6, "2")
    assert finding.first == "`nvidia-smi -q -i GPU-6 -d ECC,ROW_REMAPPER` on gpu-2"


def test_alert_about_a_late_rank_is_a_fact_of_it() -> None:
    (finding,) = ask([*straggler(), alert("RankskewGpuThrottled", **WHO)]).findings

    assert finding.rank == 6
    assert finding.facts == ("Rank 6 on n2: a GPU is throttled.",)


def test_what_cannot_be_told_is_one_sentence() -> None:
    """An unknown job, several jobs, an empty time, a dead or forbidding server."""
    two = [*fake.job("b"), *fake.job("a")]
    with pytest.raises(CannotTell, match=r"There is no job 'c'; there are: a, b\."):
        ask(two, "c")
    with pytest.raises(CannotTell, match=r"There are 2 jobs; name one with --job: a, b\."):
        ask(two)
    with pytest.raises(CannotTell, match=r"recorded nothing of any job at 1970-01-01 00:01:40"):
        ask([], at=100.0)
    with (
        serving(lambda path, form: (403, "text/plain", b"no")) as url,
        pytest.raises(CannotTell, match=r"refuses us \(403"),
    ):
        read_prometheus(url, None, None, None)


def test_trouble_halfway_is_not_hidden() -> None:
    """A Prometheus that dies between two queries is no healthy job."""
    fleet = FakePrometheus(straggler())

    def answer(path: str, form: dict[str, str]) -> tuple[int, str, bytes]:
        return (500, "text/plain", b"") if len(fleet.asked) > 6 else fleet.answer(path, form)

    with serving(answer) as url, pytest.raises(Trouble, match="answers 500"):
        read_prometheus(url, None, None, None)


# ---- A job that became slower as a whole ---------------------------------------------------------


def changed(scope: str) -> list[Series]:
    """Return what the exporters of two nodes repeat of the judge."""
    figures = {"ratio": 2.5, "gpus": 0.8, "since_timestamp_seconds": NOW - 720.0}
    return [
        series(f"rankskew_job_change_{name}", value, instance=node, scope=scope, stage="data")
        for name, value in figures.items()
        for node in ("n2:9917", "n3:9917")
    ]


def why(instance: str, cause: str, sentence: str) -> Series:
    """Return what an exporter says of the change of all ranks."""
    known = {"cause": cause, "detail": "", "sentence": sentence}
    name = "rankskew_job_change_cause_info"
    return series(name, scope="all", stage="data", instance=instance, **known)


def test_change_that_the_judge_tells_is_the_finding() -> None:
    """With its stage and onset, and what began at about that time; its own alert says no more."""
    told = [
        *fake.job(),
        series("ALERTS_FOR_STATE", NOW - 700, alertname="RankskewJobSlower"),
        series("ALERTS_FOR_STATE", NOW - 900, alertname="RankskewNetworkErrors"),
        series("ALERTS_FOR_STATE", NOW - 3000, alertname="RankskewGpuThrottled"),
        series("job:rankskew_run_seconds:max", 7000.0),
        why("n2:9917", "network", "a port is slow"),
        why("n3:9917", "input", "reads take 8 ms"),
        why("n1:9917", "input", "reads take 9 ms"),
    ]
    (slower,) = ask([*told, *changed("all")]).findings
    (of_some,) = ask([*told, *changed("set")]).findings

    assert slower.sentence == (
        "Data of peer group all has taken 2.50 times as long as before for 12 min; steps take "
        "1.11 times as long: 0.80 GPUs lost."
    )
    assert (slower.what, slower.stage, slower.since_seconds) == ("slower", "data", 720.0)
    assert slower.facts == (
        "Cause on n1 and 1 more: reads take 9 ms.",
        "Cause on n2: a port is slow.",
        "At about that time: RankskewNetworkErrors began.",
    )
    assert of_some.sentence == (
        "Many ranks of the job became slower together: data has taken 2.50 times as long for "
        "12 min."
    )
