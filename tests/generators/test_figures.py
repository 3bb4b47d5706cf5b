"""Tests that what is said of measured figures follows from them."""

import json
from pathlib import Path

import pytest

from docs import figures, scale_table


def keep(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
    """Write a benchmark's result."""
    machine = {"cpus": 2, "python": "3"}
    (folder / f"{name}.json").write_text(json.dumps({"machine": machine, "rows": rows}))


def test_missed_goal_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What costs more than its goal is told as over it, what does not as within."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    ends = {"95 % from": 1.0, "95 % to": 2.0}
    no_cpu = {"CPU median": None, "CPU 95 % from": None, "CPU 95 % to": None}
    spread = {"unit": "µs", "% of a 100 ms step": None} | ends | no_cpu
    step, push = figures.OURS, figures.PUSH
    keep(
        tmp_path,
        "overhead",
        [
            {"what": step, "median": 9.5} | spread,
            {"what": push, "median": 337.0} | spread,
            {"what": f"{step}, DDP, rank 1", "median": 99.0} | spread | {"CPU median": 14.0},
        ],
    )
    text = figures.overhead()

    assert f"*{step}*: 9.5 µs, within the goal of 10 µs." in text
    assert f"*{push}*: 337 µs, **over** the goal of 300 µs." in text
    assert f"*{step}, DDP, rank 1*: 14 µs of CPU, within the goal of 15 µs." in text


def test_interval_is_shown_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A median has its interval, of either time; with too few values for one, it stands alone."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    step, push = figures.OURS, figures.PUSH
    rest = {"unit": "µs", "% of a 100 ms step": None}
    wall = {"median": 9.5, "95 % from": 9.0, "95 % to": 10.0}
    cpu = {"CPU median": 8.5, "CPU 95 % from": None, "CPU 95 % to": None}
    no_cpu = dict.fromkeys(cpu)
    rows = [{"what": step} | wall | cpu | rest, {"what": push} | wall | no_cpu | rest]
    keep(tmp_path, "overhead", rows)
    text = figures.overhead()

    assert f"| {step} | 9.5 µs (9 to 10) | 8.5 µs |" in text
    assert f"| {push} | 9.5 µs (9 to 10) |  |" in text


def test_scale_is_held_against_its_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size has its sentence, and a missed goal or evaluation is in it."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    cell = {"jobs": 1, "tree": "now", "CPU s of 15 without rules": 2.2}
    keep(
        tmp_path,
        "scale",
        [
            cell | {"ranks": ranks, "rules CPU s of 15": taken, "RSS MiB": 2_048, "missed": lost}
            for ranks, taken, lost in ((4096, 1.48, 0), (16384, 29.1, 2))
        ]
        + [cell | {"ranks": 16384, "tree": "before"}],
    )

    small, large = scale_table.outcome().splitlines()
    assert "4,096 ranks the rules take 1.5 CPU seconds of 15 (within the goal of 1.5)" in small
    assert "scraping 2.2 (within the goal of 2.5), and Prometheus 2.0 GiB" in small
    assert small.endswith("no evaluation was missed.")
    assert "29.1 CPU seconds of 15 (**over** the goal of 1.5)" in large
    assert large.endswith("2 evaluations were missed.")
