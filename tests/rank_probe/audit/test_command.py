"""`rank-probe audit` on one node: what it prints, its options, and the status that gates a job."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.audit.plants import FILES, NODES
from rank_probe.audit import command
from rank_probe.command_line.grammar import WrongCommand
from rank_probe.version import __version__
from tests import nvmlstub

NODE = NODES[0]
SLOW_PORT = {"sys/class/infiniband/mlx5_1/ports/1/rate": "100 Gb/sec (1X NDR)"}
SMALL_QUOTA = {"sys/fs/cgroup/job/cpu.max": "50000 100000"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is no rank."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "CUDA_VISIBLE_DEVICES", "NCCL_IB_HCA"):
        monkeypatch.delenv(name, raising=False)


def paths(folder: Path, **files: str) -> list[str]:
    """Write a machine without trouble, but for *files*; return the options that name it."""
    for name, text in {**FILES, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(node=NODE))
    return ["--path.procfs", f"{folder}/proc", "--path.sysfs", f"{folder}/sys"]


def test_node_without_trouble_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each check, and status 0."""
    status = command.run(paths(tmp_path))
    lines = capsys.readouterr().out.splitlines()

    assert status == 0
    assert lines[0] == f"audit: node {NODE}, for 1 rank, rankskew {__version__}"
    assert "OK           infiniband: 4 ports are active and equally fast" in lines
    assert lines[-1].startswith("ok: of 17 checks 0 failed, 0 warned, ")


def test_what_fails_comes_first_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason in one line, what to do in the next, and status 1."""
    status = command.run(paths(tmp_path, **SMALL_QUOTA))
    lines = capsys.readouterr().out.splitlines()

    assert status == 1
    assert lines[1] == (
        f"FAIL         cpu_quota: the control group on {NODE} allows 0.5 CPUs for 1 rank"
    )
    assert lines[2].startswith("             do: raise the CPU limit of the pod, container or job")
    assert lines[-1].startswith("problem: of 17 checks 1 failed, 0 warned, ")


def test_strict_lets_a_warning_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A warning alone does not close a gate."""
    options = paths(tmp_path, **SLOW_PORT)

    assert (command.run(options), command.run([*options, "--strict"])) == (0, 1)
    assert "\nWARN         infiniband: slower than most" in f"\n{capsys.readouterr().out}"


def test_ranks_and_workers_are_those_to_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prolog says how many there will be."""
    status = command.run([*paths(tmp_path), "--ranks", "4096", "--workers", "2", "--pin-memory"])
    said = capsys.readouterr().out

    assert status == 1
    assert f"4096 ranks on {NODE}, with 1 thread and 2 loader workers and 1 pinning thread" in said


def document(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """Return the JSON document about a machine with a small quota."""
    command.run([*paths(folder, **SMALL_QUOTA), "--json", *options])
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_json_has_what_the_lines_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts get one document, of which docs/audit.md has every field and every check."""
    page = (Path(__file__).parents[3] / "docs/audit.md").read_text()
    said = document(tmp_path, capsys)
    check = said["checks"][0]

    assert (said["ok"], said["ranks"], said["nodes"]) == (False, 0, [NODE])
    assert (check["check"], check["status"]) == ("cpu_quota", "fail")
    assert check["findings"][0]["advice"].startswith("raise the CPU limit")
    names = [*said, *check, *check["findings"][0], *(one["check"] for one in said["checks"])]

    assert [name for name in names if f"`{name}`" not in page] == []


def test_textfile_has_one_series_for_each_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written at once, so that node_exporter never reads half of it."""
    target = tmp_path / "out/audit.prom"
    target.parent.mkdir()
    document(tmp_path, capsys, "--textfile", str(target))
    lines = target.read_text().splitlines()

    assert lines[1] == "# TYPE rankskew_audit_check gauge"
    assert 'rankskew_audit_check{check="cpu_quota",status="fail"} 1' in lines
    assert len(lines) == 2 + 17
    assert list(target.parent.iterdir()) == [target]


def test_textfile_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The launch is no worse for it, so the status is that of the findings."""
    status = command.run([*paths(tmp_path), "--textfile", str(tmp_path / "absent/audit.prom")])
    said = capsys.readouterr()

    assert status == 0
    assert "ok: of 17 checks" in said.out
    assert said.err == (
        f"rank-probe: cannot write --textfile {tmp_path}/absent/audit.prom: "
        "No such file or directory\n"
    )


def test_driver_that_hangs_ends_the_audit(library: Path, tmp_path: Path) -> None:
    """A call into NVML that never returns costs the timeout and no more."""
    (tmp_path / "scenario").write_text("nvmlInitWithFlags * hang\n")
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "rank_probe", "audit", "--timeout", "1s"],
        env=os.environ | nvmlstub.environment(library, 8, tmp_path / "scenario"),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "rank-probe: the audit did not end within 1 s: it was reading this node, where a call into "
        "the driver may hang: look at dmesg\n"
    )
    assert 1.0 <= time.monotonic() - began < 30.0


def test_audit_of_a_node_does_not_import_torch(tmp_path: Path) -> None:
    """A prolog has no time for it, and the node may have no torch."""
    program = (
        "import sys; from rank_probe.__main__ import main; main(['audit']); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout.endswith("\nFalse\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["now"], "unrecognized arguments: now"),
        (["--timeout", "0s"], "argument --timeout: '0s' is not a duration above 0"),
        (["--workers", "-1"], "argument --workers: '-1' is not a number such as 8"),
        (["--rank", "8"], "unrecognized arguments: --rank 8"),
    ],
)
def test_wrong_option_is_one_sentence(arguments: list[str], said: str) -> None:
    """It names the help of the command."""
    with pytest.raises(WrongCommand, match="^" + said.replace("(", r"\(")) as wrong:
        command.run(arguments)

    assert wrong.value.help == "rank-probe audit --help"
