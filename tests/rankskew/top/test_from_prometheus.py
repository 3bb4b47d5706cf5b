"""Jobs from the series that the rules record."""

from collections.abc import Sequence

import pytest

from rankskew.client.prometheus import Prometheus
from rankskew.top.from_prometheus import NO_EXPORTER, NO_RULES, read_fleet
from rankskew.top.model import NO_RANK, STATES, UNKNOWN, FleetStatus
from tests.rankskew.top import fake_prometheus as fake
from tests.rankskew.top.fake_prometheus import FakePrometheus, Series, series

SUSPECT = series(
    "rank_stage:rankskew_hang_suspect:group", rank="6", stage="data", instance="n2:9917"
)


def read(*samples: Series, cluster: str | None = None, job_id: str | None = None) -> FleetStatus:
    """Return the fleet that a Prometheus with *samples* has."""
    with FakePrometheus(samples).serve() as url:
        return read_fleet(Prometheus(url), cluster, job_id)


def test_late_job_has_cost_and_cause() -> None:
    """The cause is the exporter's, word for word; only Prometheus knows the cost an hour.

    NaN, a division by zero in a rule, is no reading; a rank of which nothing is left has no row.
    """
    lost = [series("job_kind:rankskew_gpus_lost:sum", 0.15, kind=k) for k in ("common", "group")]
    nothing = series("job:rankskew_slowdown:max", float("nan"))
    straggler = [*fake.job(state="straggler"), *fake.late(), *fake.cause(), *lost, nothing]
    (job,) = read(*straggler).jobs
    cause = job.late[0].cause

    assert (job.state, job.culprit, job.since_seconds) == ("straggler", (6, "data"), 240.0)
    assert (job.gpus_lost, job.world_size, job.cost_per_hour) == (0.3, 8, 0.75)
    assert (job.lost_by_kind, job.slowdown) == ({"common": 0.15, "group": 0.15}, None)
    assert job.cause == "loader (workers at their limit)"
    assert job.sentence == "Rank 6 is slow loading data; 1.65 of 8 GPUs wait for it."
    assert job.details == (
        "Cause: 3 of its workers never wait, 0 of its peers' (97% of the delay).",
    )
    assert job.first_action == "`py-spy dump --pid 4006` on n2"
    assert cause is not None
    assert (cause.figure, cause.value, cause.peers_value) == ("saturated_workers", 3.0, 0.0)
    assert (cause.cause, cause.detail, cause.share) == ("input", "workers", 0.97)
    assert list(job.ranks) == []


def test_rank_without_a_cause_yet_has_no_words_for_it() -> None:
    """Nothing is derived here, and a hung job is not explained by what made a rank late before."""
    (young,) = read(*fake.job(state="straggler"), *fake.late()).jobs
    (hung,) = read(*fake.job(state="hung"), *fake.late(), *fake.cause(), SUSPECT).jobs

    assert [(each.cause, each.first_action) for each in (young, hung)] == [(None, None)] * 2


def test_rank_that_costs_too_little_is_late_but_not_told() -> None:
    """The rules decide it, as the page does: one that costs little, or all of them together."""
    series_of = fake.late()
    little = [each for each in series_of if "told_gpus" not in each[0]["__name__"]]
    cheap = [each for each in series_of if "severity" not in each[0]["__name__"]]
    jobs = [read(*fake.job(), *samples).jobs[0] for samples in (series_of, little, cheap)]

    assert [job.culprit for job in jobs] == [(6, "data"), None, None]
    assert [late.is_called_late for job in jobs for late in job.late] == [True, False, False]


def test_costly_duty_is_told_as_what_it_is() -> None:
    """With its period and length, in the words of the page; no straggler is needed for it."""
    who = {"job_id": "llama", "rank": "0", "instance": "n2:9917", "peer_group": "all"}
    samples = [
        *fake.job(state="straggler"),
        series("rank:rankskew_late:ratio", 0.54, kind="duty", stage="checkpoint", **who),
        series("rank:rankskew_gpus_lost:sum", 1.05, **who),
        series("rank:rankskew_told_gpus_lost:sum", 1.05, kind="duty", stage="checkpoint", **who),
        series("rankskew_late_pause_steps", 25, **who),
        series("rankskew_late_pause_seconds", 1.01, sentence="of the exporter", **who),
    ]
    (job,) = read(*samples).jobs

    assert job.sentence == "Rank 0 saves every 25 steps for 1.0 s; 1.05 of 8 GPUs wait for it."
    assert job.culprit == (0, "checkpoint")


def test_node_has_its_name_instead_of_its_address() -> None:
    """Discovery that knows addresses only does not make anyone look them up at night."""
    address = {"instance": "10.0.0.2:9917"}
    late = [(labels | address, value) for labels, value in [*fake.late(), *fake.rank(6)]]
    name = series("rankskew_exporter_build_info", nodename="gpu-2", job_id="", **address)
    (job,) = read(*fake.job(state="straggler"), *late, name).jobs

    assert [rank.node for rank in job.ranks] == ["gpu-2"]


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        (["join_incomplete", "off", "ranks_missing"], "off"),
        (["join_incomplete", "ranks_missing", "ranks_silent"], "ranks_silent"),
        (["no_steps", "ranks_without_probe", "ranks_missing"], "ranks_without_probe"),
        (["no_sync", "single_rank"], "single_rank"),
        (["of_a_newer_release", "warming_up"], "warming_up"),
        (["of_a_newer_release"], "of_a_newer_release"),
    ],
)
def test_reason_that_explains_the_others_is_told(reasons: list[str], told: str) -> None:
    """A job has several reasons at once; the first letter of one says nothing about it."""
    name = "job_reason:rankskew_not_judgeable:bool"
    (job,) = read(
        *fake.job(state="not_judgeable"), *(series(name, reason=each) for each in reasons)
    ).jobs

    assert job.reason == told


def test_state_of_a_newer_release_is_not_known() -> None:
    """Exporters and rules may be newer than whoever asks: a state of theirs is a question mark."""
    (job,) = read(*fake.job(state="of_a_newer_release")).jobs

    assert (job.state, job.sentence) == (UNKNOWN, "")


def test_fleet_takes_a_handful_of_queries() -> None:
    """However many jobs there are, two queries, none on the series of every rank."""
    prometheus = FakePrometheus([each for n in range(50) for each in fake.job(f"job{n}")])
    with prometheus.serve() as url:
        fleet = read_fleet(Prometheus(url))

    assert len(fleet.jobs) == 50
    assert len(prometheus.asked) == 2
    assert not any("rankskew_steps_total" in query for query in prometheus.asked)


def test_most_urgent_job_comes_first() -> None:
    """Hung, then by GPUs lost, then what cannot be judged, then healthy, then ended."""
    states = ("no_probe", "healthy", "not_judgeable", "straggler", "hung", "ranks_missing")
    samples = [each for state in states for each in fake.job(state, state)]
    samples += fake.job("costly", "rotating", gpus_lost=2.4)
    jobs = read(*samples).jobs

    assert [job.job_id for job in jobs] == [
        "hung",
        "costly",
        "ranks_missing",
        "straggler",
        "not_judgeable",
        "healthy",
        "no_probe",
    ]


SENTENCES = {
    "hung": "No step for 5 min: rank 6 on n2:9917 is stuck in data.",
    "exporter_down": "An exporter on n2:9917 does not answer, so what its ranks do is not known.",
    "ranks_missing": "2 of 8 ranks are not seen by any exporter.",
}


@pytest.mark.parametrize("state", [state for state in STATES if state != UNKNOWN])
def test_each_state_has_a_sentence(state: str) -> None:
    known = [
        *(SUSPECT, series("job:rankskew_hung:seconds", 300)),
        series("node:rankskew_exporter_down:group", instance="n2:9917"),
        series("job:rankskew_ranks_missing:sum", 2),
    ]
    (bare,), (told,) = (read(*fake.job(state=state), *more).jobs for more in ((), known))

    assert (bare.state, bare.sentence[-1:]) == (state, ".")
    assert told.sentence == SENTENCES.get(state, bare.sentence)
    if state == "hung":
        assert (told.culprit, told.since_seconds) == ((6, "data"), 300.0)


def test_one_cluster_of_several() -> None:
    samples = [*fake.job(), *fake.job(cluster="us")]

    assert [job.cluster for job in read(*samples).jobs] == ["eu", "us"]
    assert [job.cluster for job in read(*samples, cluster="us").jobs] == ["us"]


def test_ranks_of_a_job() -> None:
    """The late rank comes first, with its process, GPU and stages."""
    ranks = [each for n in range(4) for each in fake.rank(n)] + fake.rank(6, "n2:9917")
    focus = read(*fake.job(state="straggler"), *fake.late(), *ranks, job_id="llama").focus

    assert focus is not None
    assert [rank.rank for rank in focus.ranks] == [6, 0, 1, 2, 3]
    late = focus.ranks[0]
    assert (late.node, late.pid, late.gpu, late.local_rank) == ("n2:9917", 4006, "2", "2")
    assert late.stage_seconds == {"data": 0.1, "forward": 0.2, "sync": 0.24}
    assert (late.report_age_seconds, focus.steps) == (3.0, 1200)
    assert late.late is not None
    assert late.late.gpus_lost == 1.65


def test_rank_that_moved_is_shown_where_it_reports() -> None:
    """After a restart on another node the series of the dead process remain for a while."""
    moved = [*fake.rank(0, age=500.0), *fake.rank(0, "n9:9917")]
    focus = read(*fake.job(), *moved).focus

    assert focus is not None
    assert [rank.node for rank in focus.ranks] == ["n9:9917"]


ELSEWHERE = [*fake.job("b"), *fake.job("a"), *fake.job("a", cluster="us")]


@pytest.mark.parametrize(
    ("samples", "asked", "trouble"),
    [
        ([series("rankskew_node_ranks")], {}, NO_RULES),
        ([series("rankskew_exporter_build_info")], {}, NO_RANK),
        ([series("up")], {}, NO_EXPORTER),
        (ELSEWHERE, {"cluster": "mars"}, "No exporter has the label cluster='mars'."),
        (ELSEWHERE, {"job_id": "c"}, "There is no job 'c'; there are: a, b."),
        (ELSEWHERE, {"job_id": "a"}, "Several clusters have a job 'a'; give one: --cluster 'eu'."),
    ],
)
def test_why_there_is_no_job(
    samples: Sequence[Series], asked: dict[str, str], trouble: str
) -> None:
    """No rules, no rank yet, no exporter, or a misspelt name have different remedies."""
    assert read(*samples, **asked).troubles == [trouble]
