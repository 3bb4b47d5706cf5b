"""Thresholds are series: every job has each of them, and its own value wins."""

from pathlib import Path

from alerts import build
from exporter.vocabulary import thresholds
from tests.alerts.promtool import Expect, assert_rules

VALUE = "job:rankskew_threshold:value"
NODE = {"series": 'rankskew_node_ranks{job_id="j",instance="n",state="beating"}', "values": "1x10"}


def defaults() -> dict[str, float]:
    """Return the default of every threshold."""
    return {each.name: each.value for each in thresholds.defaults().values()}


def test_rules_are_made_from_the_one_list() -> None:
    """The exporter and Prometheus have the same thresholds."""
    assert build.FILE.read_text() == build.text(), "run python -m alerts.build"


def values(thresholds: dict[str, float], who: str = 'job_id="j",') -> dict[str, float]:
    return {f'{VALUE}{{{who}name="{name}"}}': value for name, value in thresholds.items()}


def override(name: str, value: float, who: str = "") -> dict[str, str]:
    series = f'rankskew:threshold:override{{{who}name="{name}"}}'
    return {"series": series, "values": f"{value}x10"}


def assert_values(folder: Path, series: list[dict[str, str]], expected: dict[str, float]) -> None:
    assert_rules(folder, series, [Expect(VALUE, 30, expected)], groups=["thresholds"])


def test_every_job_has_every_threshold(tmp_path: Path) -> None:
    """A job that nobody made an override for has all the defaults."""
    assert len(defaults()) > 20
    assert_values(tmp_path, [NODE], values(defaults()))


def test_job_without_the_probe_has_every_threshold(tmp_path: Path) -> None:
    """A job that is known by its processes on the GPUs alone is judged too, and is listed once."""
    alone = {
        "series": 'rankskew_gpu_rank_info{job_id="j",local_rank="0",source="environ"}',
        "values": "1x10",
    }

    assert_values(tmp_path, [alone], values(defaults()))
    assert_values(tmp_path, [alone, NODE], values(defaults()))


def test_gpus_without_a_job_have_every_threshold(tmp_path: Path) -> None:
    """GPUs that no rank runs on are found by an empty job_id, in each cluster."""
    nodes = [
        {"series": 'rankskew_gpus_visible{instance="n"}', "values": "8x10"},
        {"series": 'rankskew_gpus_visible{cluster="c",instance="n"}', "values": "8x10"},
    ]

    assert_values(tmp_path, nodes, values(defaults(), "") | values(defaults(), 'cluster="c",'))


def test_override_wins_for_its_job_and_name(tmp_path: Path) -> None:
    """An override replaces one value of one job and leaves the rest as it was."""
    series = [NODE, override("hang_seconds", 10, 'job_id="j",')]
    series.append(override("skew_ratio", 0.5, 'job_id="other",'))
    expected = values(defaults() | {"hang_seconds": 10.0})
    expected[f'{VALUE}{{job_id="other",name="skew_ratio"}}'] = 0.5

    assert_values(tmp_path, series, expected)


def test_override_without_a_job_is_for_all_that_have_none_of_their_own(tmp_path: Path) -> None:
    """Of three values the job's own counts, then the one for all jobs, then the default."""
    series = [
        NODE,
        {"series": 'rankskew_node_ranks{job_id="own",state="beating"}', "values": "1x10"},
        override("hang_seconds", 300),
        override("hang_seconds", 10, 'job_id="own",'),
    ]
    expected = values(defaults() | {"hang_seconds": 300.0})
    expected |= values(defaults() | {"hang_seconds": 10.0}, 'job_id="own",')

    assert_values(tmp_path, series, expected)


def test_override_is_for_its_own_cluster(tmp_path: Path) -> None:
    """Two clusters' jobs of one name do not share an override."""
    there = {"series": NODE["series"].replace("{", '{cluster="c",'), "values": "1x10"}
    series = [NODE, there, override("hang_seconds", 10, 'cluster="c",job_id="j",')]
    series.append(override("skew_ratio", 0.5, 'cluster="c",'))
    expected = values(defaults())
    changed = {"hang_seconds": 10.0, "skew_ratio": 0.5}
    expected |= values(defaults() | changed, 'cluster="c",job_id="j",')

    assert_values(tmp_path, series, expected)
