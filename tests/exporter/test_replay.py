"""`rankskew replay` says what the rules would have said, or in one line why it cannot."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exporter.__main__ import main
from tests.exporter.recorded import record

RULES = Path(__file__).parents[2] / "alerts" / "rules"
TRACES = Path(__file__).parents[1] / "fixtures" / "traces"
ABOUT_NODES = ("gpu", "hardware", "pcie", "evidence", "cause", "workload", "cost", "exporter")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the shipped rules without those of which a trace shows nothing: half the time."""
    folder = tmp_path_factory.mktemp("rules")
    for path in RULES.glob("*.yaml"):
        if path.stem not in ABOUT_NODES:
            shutil.copy(path, folder)
    return folder


def replay(capsys: Capture, *arguments: object) -> str:
    """Return what the command prints."""
    assert main(["replay", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def job(capsys: Capture, *arguments: object) -> dict[str, Any]:
    """Return the one job that the command prints as JSON."""
    (found,) = json.loads(replay(capsys, "--format=json", *arguments))["jobs"]
    assert isinstance(found, dict)
    return found


def named(found: dict[str, Any]) -> dict[int, str]:
    """Return the stage of each rank that paged."""
    return {
        finding["rank"]: finding["stage"]
        for finding in found["findings"]
        if finding["kind"] == "persistent"
    }


def test_late_rank_is_named_with_time_stage_and_cost(
    tmp_path: Path, capsys: Capture, rules: Path
) -> None:
    """A rank half a step late from 100 s on is named within the minute, and what it costs."""
    path = record(
        tmp_path / "a.csv",
        late=lambda rank, step: 0.5 * (rank == 3 and 100 <= step < 250),
        steps=400,
    )
    found = job(capsys, "--rules", rules, path)

    assert (found["job_id"], found["attempt"], found["ranks"], found["steps"]) == ("j", 0, 8, 400)
    (finding,) = [one for one in found["findings"] if one["kind"] == "persistent"]
    assert finding | {"onset_s": 0, "cleared_s": 0, "gpus_lost": 0} == {
        "alert": "RankskewStraggler",
        "severity": "warning",
        "kind": "persistent",
        "rank": 3,
        "peer_group": "pp0",
        "instance": "node1",
        "stage": "backward",
        "onset_s": 0,
        "cleared_s": 0,
        "gpus_lost": 0,
    }
    assert 100 < finding["onset_s"] <= 165
    assert 325 < finding["cleared_s"] <= 475
    assert found["gpus_lost_by_kind"]["persistent"] == pytest.approx(7 * 0.5 * 150 / 475, rel=0.1)
    assert sum(found["gpus_lost_by_kind"].values()) == pytest.approx(found["gpus_lost"])
    assert found["slowdown"] == pytest.approx(475 / 400, rel=0.02)


@pytest.mark.parametrize(
    ("late", "culprits"),
    [
        pytest.param(lambda rank, step: {2: 0.5, 5: 0.45}.get(rank, 0.0), {2, 5}, id="two at once"),
        pytest.param(
            lambda rank, step: 0.4 * (rank == step // 130 * 3), {0, 3, 6}, id="a wandering one"
        ),
    ],
)
def test_shapes_of_real_traces(
    tmp_path: Path,
    capsys: Capture,
    rules: Path,
    late: Callable[[int, int], float],
    culprits: set[int],
) -> None:
    """Whoever is late for minutes is named."""
    path = record(tmp_path / "a.csv", late=late, steps=390)

    assert named(job(capsys, "--rules", rules, path)) == dict.fromkeys(culprits, "backward")


def test_healthy_job_has_no_finding(tmp_path: Path, capsys: Capture, rules: Path) -> None:
    """Where nobody is late nothing fires at all, and nothing slows the job down."""
    found = job(capsys, "--rules", rules, record(tmp_path / "a.csv", steps=700))

    assert (found["findings"], found["slowdown"]) == ([], 1.0)


def test_another_late_rank_in_each_step_is_nobodys_fault(
    tmp_path: Path, capsys: Capture, rules: Path
) -> None:
    """A loss without a stable leader is told as one, of the job and of no rank."""
    path = record(
        tmp_path / "a.csv", late=lambda rank, step: 0.5 * (rank == step * 3 % 8), steps=390
    )
    found = job(capsys, "--rules", rules, path)

    assert {finding["kind"] for finding in found["findings"]} == {"rotating"}


def test_slow_node_is_one_finding(tmp_path: Path, capsys: Capture, rules: Path) -> None:
    """Where all ranks of a node are late it is the node that is named, and they are what costs."""
    path = record(tmp_path / "a.csv", late=lambda rank, step: 0.3 * (rank in (2, 3)), steps=300)
    found = job(capsys, "--rules", rules, path)
    (finding,) = found["findings"]

    assert (finding["kind"], finding["instance"], finding["rank"]) == ("node", "node1", None)
    assert found["slowdown"] == pytest.approx(1.3, rel=0.05)


def test_ranks_that_differ_for_good_are_nobodys_fault(
    tmp_path: Path, capsys: Capture, rules: Path
) -> None:
    """Workers on shares of GPUs spread by a quarter, and by as much in every step: none stands out.

    The shape of job 2 of Alibaba's mini-batch times: compute alone, a sample every ten seconds.
    """
    path = record(
        tmp_path / "a.csv",
        late=lambda rank, step: 0.03 * rank - 0.18,
        ranks=10,
        steps=250,
        every_seconds=10.0,
        synced=False,
    )

    assert job(capsys, "--rules", rules, path)["findings"] == []


def test_real_job_with_a_slow_worker(tmp_path: Path, capsys: Capture, rules: Path) -> None:
    """In ByteDance's trace the worker that was slowed down is named, and nobody else."""
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.decompress((TRACES / "bytedance_AR.csv.gz").read_bytes()))
    found = job(capsys, "--rules", rules, path)

    assert {finding["rank"] for finding in found["findings"]} == {0}
    assert found["slowdown"] == pytest.approx(2.168, abs=0.01)


def test_unequal_pipeline_stages_are_nobodys_fault(
    tmp_path: Path, capsys: Capture, rules: Path
) -> None:
    """A heavier group costs GPUs and names no rank of its own."""
    path = record(tmp_path / "a.csv", group_work=(1.0, 1.0, 1.0, 1.3), steps=300)
    found = job(capsys, "--rules", rules, path)

    assert named(found) == {}
    assert found["slowdown"] == 1.0
    assert found["gpus_lost_by_kind"]["group"] == pytest.approx(6 * 0.3 / 1.3, rel=0.1)


@pytest.mark.parametrize("every_seconds", [10.0, 45.0])
def test_sampled_steps_are_judged(
    tmp_path: Path, capsys: Capture, rules: Path, every_seconds: float
) -> None:
    """A step in ten, or steps of three quarters of a minute: who is late in them is named."""
    path = record(
        tmp_path / "a.csv",
        late=lambda rank, step: 0.5 * (rank == 3),
        step_seconds=min(every_seconds, 30.0) / 10 if every_seconds < 45 else 30.0,
        steps=int(1500 / every_seconds),
        every_seconds=every_seconds,
    )

    assert named(job(capsys, "--rules", rules, path)) == {3: "backward"}


def test_short_trace_is_stretched(tmp_path: Path, capsys: Capture, rules: Path) -> None:
    """Twelve seconds of fast steps are too short for any rule; as minutes they are not."""
    path = record(
        tmp_path / "a.csv",
        late=lambda rank, step: 0.5 * (rank == 3),
        step_seconds=0.04,
        steps=200,
    )
    short, long = job(capsys, path), job(capsys, "--time-scale=25", "--rules", rules, path)

    assert (short["source"], short["slowdown"], short["not_judgeable"]) == (
        "none",
        None,
        ["warming_up"],
    )
    assert named(long) == {3: "backward"}
    assert long["seconds"] == pytest.approx(25 * short["seconds"], rel=1e-3)
    assert long["gpus_lost"] == pytest.approx(short["gpus_lost"])


def test_wait_that_was_not_measured_pages_nobody(
    tmp_path: Path, capsys: Capture, rules: Path
) -> None:
    """Without it nobody knows who waits: a reason, and after ten minutes who is slower is told."""
    path = record(
        tmp_path / "a.csv", late=lambda rank, step: 0.5 * (rank == 3), synced=False, steps=800
    )
    found = job(capsys, "--rules", rules, path)

    (finding,) = found["findings"]
    assert (finding["alert"], finding["severity"], finding["rank"]) == (
        "RankskewRankSlower",
        "info",
        3,
    )
    assert finding["onset_s"] >= 600
    assert found["not_judgeable"] == ["no_sync"]
    assert (found["source"], found["slowdown"]) == ("none", None)
    assert "if all waited for the slowest, lost" in replay(capsys, "--rules", rules, path)


def test_own_rules_decide(tmp_path: Path, capsys: Capture, rules: Path) -> None:
    """With a threshold of one's own a rank that pages otherwise does not, and nothing is edited."""
    path = record(tmp_path / "a.csv", late=lambda rank, step: 0.1 * (rank == 3), steps=200)
    mine = tmp_path / "rules"
    shutil.copytree(rules, mine)
    (mine / "mine.yaml").write_text(
        "groups: [{name: mine, rules: [{record: 'rankskew:threshold:override',"
        " labels: {name: gpus_lost_ratio, job_id: j}, expr: '0.5'}]}]"
    )

    assert named(job(capsys, "--rules", rules, path)) == {3: "backward"}
    assert named(job(capsys, "--rules", mine, path)) == {}


def test_text_says_what_fired_and_what_it_cost(
    tmp_path: Path, capsys: Capture, rules: Path
) -> None:
    """One line for each finding, the four kinds with the ranks and stages that cost, each group."""
    path = record(tmp_path / "a.csv", late=lambda rank, step: 0.5 * (rank == 3), steps=200)
    said = replay(capsys, "--rules", rules, path).splitlines()

    assert said[0].startswith("job j, attempt 0: 200 steps of 8 ranks in 0:0")
    assert said[1].startswith("  0:0")
    assert (
        " to the end: RankskewStraggler (warning) rank 3 of peer group pp0 on node1 in " in said[1]
    )
    assert "times what it would take with rank 3 as fast as its peers" in said[2]
    kinds = ("persistent", "rotating", "group", "common")
    lines = [[line for line in said if f"({kind}): " in line] for kind in kinds]
    assert [len(found) for found in lines] == [1, 1, 1, 1]
    assert any(line.startswith("      rank 3 in backward: ") for line in said)
    assert said[-1].startswith("  peer group pp0: 8 ranks waited ")


def test_runs_and_steps_that_lack_ranks_are_said(
    tmp_path: Path, capsys: Capture, rules: Path
) -> None:
    """Each attempt is a job of its own; what cannot be accounted for is said, and no error."""
    path = record(tmp_path / "a.csv", steps=3)
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *rows[:-1], ""]))
    alone = next(row for row in rows if row.startswith("j,0,"))
    (tmp_path / "j-1-0.csv").write_text(f"{header}\n{alone}\n")
    (tmp_path / "j-1-1.csv").write_text(f"{header}\n{alone.replace('j,0,pp0,0', 'j,1,pp0,1')}\n")
    first, second = replay(capsys, "--rules", rules, tmp_path).split("\n\n")

    assert first.startswith("job j, attempt 0: 2 steps of 8 ranks")
    assert "(1 more lack a rank and are left out)" in first
    assert "  nothing fired\n  not judgeable: warming_up\n" in first
    assert second.startswith("job j, attempt 1: 0 steps of 2 ranks")
    assert "no step has all ranks" in second


def test_loss_that_nobody_can_account_for_is_null(
    tmp_path: Path, capsys: Capture, rules: Path
) -> None:
    """Without a step of all ranks there is no reading of what was lost, which is not 0."""
    path = record(tmp_path / "a.csv", ranks=2, steps=2)
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, rows[0], rows[3], ""]))
    found = job(capsys, "--rules", rules, path)

    assert found["whole_steps"] == 0
    assert (found["gpus_lost"], found["gpus_lost_by_kind"], found["slowdown"]) == (None, None, None)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--time-scale=0"], "'0' is no number above 0"),
        (["--time-scale=inf"], "'inf' is no number above 0"),
        (["--time-scale=fast"], "'fast' is no number above 0"),
        (["--scrape-interval=0s"], "'0s' is no time to wait"),
        (["--scrape-interval=15"], "'15' is not a duration such as 5m"),
        (["--format=xml"], "invalid choice: 'xml'"),
        (["--rules=/nowhere"], "/nowhere has no rule file"),
        ([], "cannot read /nowhere.csv: No such file or directory"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], complaint: str, capsys: Capture) -> None:
    """A wrong value or file ends the command with status 2, one line and nothing else."""
    assert main(["replay", *arguments, "/nowhere.csv"]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert complaint in said.err
    assert said.err.count("\n") == 1
