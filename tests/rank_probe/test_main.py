"""Tests of the trainer's command, as a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rank_probe.__main__ import main
from rank_probe.audit import command
from rank_probe.command_line.grammar import USAGE
from rank_probe.version import __version__
from tests.rank_probe.sink import listening


def run(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m rank_probe` with *arguments* in *cwd*."""
    launcher = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    return subprocess.run(
        [sys.executable, "-m", "rank_probe", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | launcher | (environment or {}),
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that says what it sees and ends as an argument says."""
    path = tmp_path / "train.py"
    path.write_text(
        "import sys, helper\n"
        "print(__name__, sys.argv[1:], helper.VALUE)\n"
        "if 'raise' in sys.argv: raise RuntimeError('theirs')\n"
        "sys.exit(3 if '3' in sys.argv else 0)\n"
    )
    (tmp_path / "helper.py").write_text("VALUE = 42\n")
    return path


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["train.py", "0", "--lr", "1"], "__main__ ['0', '--lr', '1'] 42"),
        (["-m", "train", "0"], "__main__ ['0'] 42"),  # as `python -m train`
        (["run", "train.py", "0"], "__main__ ['0'] 42"),
        # deepspeed and torch.distributed.launch put it before the script's other arguments.
        (["--local_rank=0", "train.py", "0"], "__main__ ['--local_rank=0', '0'] 42"),
        (["--local-rank=3", "-m", "train", "0"], "__main__ ['--local-rank=3', '0'] 42"),
        (["--version"], f"rank-probe {__version__}"),
        (["--help"], USAGE),
        (["-h"], USAGE),
        (["run", "--help"], USAGE),
    ],
)
def test_script_runs_as_main_with_its_arguments(
    script: Path, command: list[str], expected: str
) -> None:
    """The script sees itself as __main__, its own argv and its own folder."""
    done = run(*command, cwd=script.parent)

    assert done.stdout == f"{expected}\n"
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("end", "status", "finished"), [("0", 0, True), ("3", 3, False), ("raise", 1, False)]
)
def test_only_a_clean_end_marks_the_rank_finished(
    script: Path, end: str, status: int, finished: bool, tmp_path: Path
) -> None:
    """A crashed rank goes silent, so that somebody hears of it; its status and error are its."""
    with listening(tmp_path / "s") as sink:
        there = {"RANKSKEW_EXPORTER": sink.endpoint}
        done = run(str(script), end, cwd=script.parent, environment=there)

    assert done.returncode == status
    assert ("RuntimeError: theirs" in done.stderr) is (end == "raise")
    assert sink.snapshots[-1]["finished"] is finished


TRAINS = """
import os, sys
print("torch" in sys.modules)
os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
import torch.nn
import torch.distributed
print(torch.get_num_threads(), torch.distributed.get_debug_level().name)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.ones(6, 2), batch_size=2):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


def test_script_decides_when_torch_is_imported(tmp_path: Path) -> None:
    """Variables that it sets for torch take effect, and its loop is timed all the same."""
    (tmp_path / "train.py").write_text(TRAINS)
    with listening(tmp_path / "s") as sink:
        done = run(
            "train.py",
            cwd=tmp_path,
            environment={
                "RANKSKEW_EXPORTER": sink.endpoint,
                # Nobody names the rank, so the pusher asks torch for it, during its import too.
                "RANK": "",
                "OMP_NUM_THREADS": "2",
            },
        )

    assert done.stderr == ""
    assert done.stdout == "False\n1 DETAIL\n"
    assert sink.snapshots[-1]["steps"] == 3
    assert {"data", "forward", "backward", "optimizer"} <= set(sink.snapshots[-1]["stage_seconds"])
    assert sink.snapshots[-1]["probe_errors"] == 0


WHAT = "expected a script, -m MODULE, check, audit or bench-collectives"


@pytest.mark.parametrize(
    ("arguments", "said", "help"),
    [
        ([], WHAT, ""),
        (["run"], WHAT, ""),
        (["--local_rank=0"], WHAT, ""),
        (["-m"], "-m must be followed by the name of a module", ""),
        (["absent.py"], "there is no script 'absent.py' in ", ""),
        (["run", "absent.py", "--lr"], "there is no script 'absent.py' in ", ""),
        (["-m", "absent.module"], "there is no module 'absent'", ""),
        (["--nproc-per-node", "2"], "unknown option '--nproc-per-node'; ", ""),
        (["check", "now"], "unrecognized arguments: now; ", "check "),
        (
            ["check", "--wait", "60"],
            "argument --wait: '60' is not a duration such as 30s",
            "check ",
        ),
        (["check", "--wai", "5s"], "unrecognized arguments: --wai 5s; ", "check "),
        (["audit", "now"], "unrecognized arguments: now; ", "audit "),
        (["audit", "--timeout", "0s"], "argument --timeout: '0s' is not a duration abo", "audit "),
        (["audit", "--time", "8s"], "unrecognized arguments: --time 8s; ", "audit "),
    ],
)
def test_wrong_command_is_one_sentence(
    arguments: list[str], said: str, help: str, tmp_path: Path
) -> None:
    """It says what is wrong and what to do, without a traceback."""
    done = run(*arguments, cwd=tmp_path)

    assert done.stderr.startswith(f"rank-probe: {said}")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"; see rank-probe {help}--help\n")
    assert done.stdout == ""
    assert done.returncode == 2


@pytest.mark.parametrize("name", ["check", "audit"])
def test_commands_for_a_prolog_do_not_import_torch(name: str) -> None:
    """It has no time for it, and the node may have no torch."""
    program = (
        f"import sys; from rank_probe.__main__ import main; main(['{name}']); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout.endswith("\nFalse\n")


# Counts the calls that would initialise a driver, on a host with a GPU as far as torch can tell.
SPY = """
import atexit, ctypes, json
from rank_probe.guest.imports import when_imported

calls = []
library = ctypes.CDLL

def load(name, *args, **kwargs):
    if "nvidia" in str(name):
        calls.append(name)
        raise OSError("not here")
    return library(name, *args, **kwargs)

def counted(name, answer):
    return lambda *args, **kwargs: calls.append(name) or answer

def watch(torch):
    for name, answer in (("_cuda_getDeviceCount", 1), ("_cuda_getDevice", 0), ("_cuda_init", None)):
        setattr(torch._C, name, counted(name, answer))
    torch._C._cuda_isInBadFork = lambda: False
    torch._C._cuda_getCurrentRawStream = counted("_cuda_getCurrentRawStream", 0)
    torch.cuda._lazy_init = counted("_lazy_init", None)

ctypes.CDLL = load
when_imported("torch", watch)
atexit.register(lambda: print(json.dumps(calls)))  # After the probe's end.
"""
TRAIN = """
import io
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from rank_probe import api

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
answers = iter([{}, {}, {}, {}, {"level": "off"}, {}])
for rows in DataLoader(torch.ones(16, 2), batch_size=2):
    model(rows).sum().backward()
    optimizer.step()
    if api._probe is not None:
        api._probe._after_push(next(answers, {"level": "stages"}))
        api._probe.snapshot()
torch.save(model.state_dict(), io.BytesIO())
dist.destroy_process_group()
"""
WAYS = {
    "launcher": "from rank_probe.__main__ import main; main(['train.py'])",
    "by hand": "import torch, rank_probe; rank_probe.start(); import train",
}


@pytest.mark.parametrize("way", WAYS)
def test_probe_never_initialises_a_driver(tmp_path: Path, way: str) -> None:
    """From its start to its end: the script may yet choose its GPU, or fork its ranks."""
    (tmp_path / "spy.py").write_text(SPY)
    (tmp_path / "train.py").write_text(TRAIN)
    with listening(tmp_path / "s") as sink:
        done = subprocess.run(
            [sys.executable, "-c", f"import spy; {WAYS[way]}"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ
            | {"RANK": "0", "WORLD_SIZE": "1", "RANKSKEW_EXPORTER": sink.endpoint}
            # torch then asks NVML first, and the driver where NVML does not answer.
            | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "RANK_PROBE_TRACE": str(tmp_path)},
        )

    assert done.stdout == "[]\n", done.stderr
    assert sink.snapshots[-1]["finished"]
    assert sink.snapshots[-1]["probe_errors"] == 0


def test_fault_of_ours_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python itself would end with 1, which says that a check has failed."""
    monkeypatch.setattr(command, "run", lambda arguments: 1 // 0)

    assert main(["audit"]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err
