"""`rank-probe check` as a process: what it prints, and the exit status that gates a job."""

import dataclasses
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from rank_probe.check import command
from rank_probe.check.torch_here import torch_of
from rank_probe.check.unix_socket import SocketFile
from rank_probe.version import __version__
from rank_probe.wire.snapshot import DRY_RUN_PATH
from tests.exporter.running import ROOT
from tests.rank_probe.answering import answering
from tests.rank_probe.check.test_check import SCRAPED, judged

RANK = {"RANK": "3", "WORLD_SIZE": "4", "RANKSKEW_JOB_ID": "j"}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `rank-probe check` with *arguments*."""
    return subprocess.run(
        [sys.executable, "-m", "rank_probe", "check", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )


def test_rank_that_can_report_passes() -> None:
    """A line for each thing that was found, and status 0."""
    with answering({DRY_RUN_PATH: (200, judged())}) as endpoint:
        done = run(RANKSKEW_EXPORTER=endpoint, **RANK)

    torch_here = torch_of(metadata.version("torch"))
    assert done.stdout == (
        f"probe: rankskew {__version__}\n"
        f"torch: {torch_here.lines()[0]}\n"
        "job: 'j', from RANKSKEW_JOB_ID\n"
        "rank: 3 of 4 in job 'j', attempt 0, from RANK and WORLD_SIZE\n"
        f"exporter: rankskew {__version__} at {endpoint} accepts this rank\n"
        "scraped: by 10.0.0.7 (Prometheus/2.53.0) 12 s ago\n"
        "ok: ranks can report\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_nobody_there_fails(tmp_path: Path) -> None:
    """It says how to start an exporter, with status 1; stderr says what a gate waits for."""
    done = run("--wait", "1s", RANKSKEW_EXPORTER=f"unix:{tmp_path}/absent.sock", **RANK)

    assert "rank: 3 of 4 in job 'j', attempt 0" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"problem: there is no socket {tmp_path}/absent.sock: start one with: ")
    assert done.stderr.startswith("rank-probe: waiting for up to 1 s: there is no socket ")
    assert done.returncode == 1


def test_require_scrape_closes_the_gate() -> None:
    """What is a warning without the option is a failure with it."""
    with answering({DRY_RUN_PATH: (200, judged(scraped=[]))}) as endpoint:
        warned = run(RANKSKEW_EXPORTER=endpoint)
        failed = run("--require-scrape", RANKSKEW_EXPORTER=endpoint)

    assert (warned.returncode, failed.returncode) == (0, 1)
    assert "warning: nobody has scraped this exporter" in warned.stdout
    assert "problem: nobody has scraped this exporter" in failed.stdout
    assert "warning" not in failed.stdout


def test_json_has_what_the_lines_say(tmp_path: Path) -> None:
    """Scripts get one document, whether ranks can report or not; docs/operating.md has it all."""
    with answering({DRY_RUN_PATH: (200, judged(would_accept=False, reason="No."))}) as endpoint:
        refused = run("--json", RANKSKEW_EXPORTER=endpoint, **RANK)
    alone = run("--json", RANKSKEW_EXPORTER=f"unix:{tmp_path}/absent.sock")

    said = json.loads(refused.stdout)
    assert refused.returncode == 1
    assert (said["ok"], said["problem"]) == (False, "the exporter would refuse this rank: No")
    assert said["exporter"]["would_accept"] is False
    assert said["rank"]["rank"] == 3
    assert said["job"] == {"job_id": "j", "source": "RANKSKEW_JOB_ID"}
    assert json.loads(alone.stdout).keys() == said.keys()
    page = (ROOT / "docs" / "operating.md").read_text()
    section = page.partition("## Before a job starts")[2].partition("\n## ")[0]
    socket = [field.name for field in dataclasses.fields(SocketFile)]
    parts = [
        said,
        said["probe"],
        said["torch"],
        said["job"],
        said["rank"],
        said["exporter"],
        socket,
        SCRAPED,
    ]
    assert {name for part in parts for name in part if f"`{name}`" not in section} == set()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["now"], "unrecognized arguments: now"),
        (["--wait", "60"], "argument --wait: '60' is not a duration such as 30s or 5m"),
        (["--wai", "5s"], "unrecognized arguments: --wai 5s"),
    ],
)
def test_wrong_option_is_one_sentence(arguments: list[str], said: str) -> None:
    """It ends with status 2 and names the help of the command."""
    done = run(*arguments)

    assert done.stderr == f"rank-probe: {said}; see rank-probe check --help\n"
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(("text", "seconds"), [("0s", 0), ("90s", 90), ("5m", 300), ("1h", 3600)])
def test_wait_takes_a_duration(text: str, seconds: float) -> None:
    """Durations are written as everywhere in rankskew."""
    assert command.parser().parse_args(["--wait", text]).wait == seconds


def test_check_does_not_import_torch() -> None:
    """A prolog has no time for it, and the node may have no torch."""
    program = (
        "import sys; from rank_probe.__main__ import main; main(['check']); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout.endswith("\nFalse\n")
