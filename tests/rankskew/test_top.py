"""`rankskew top`: what is on the terminal, what it prints, and how it ends."""

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import pytest
from rich.cells import cell_len
from rich.console import Console

from exporter.live.sentences import LateView
from rankskew.__main__ import main
from rankskew.top.model import FleetStatus, JobStatus, Rank, costliest_first, worth_a_row
from rankskew.top.screen import frame, kept, show
from tests.exporter.running import PATIENCE_SECONDS, ROOT
from tests.printed import assert_golden
from tests.rankskew import fake_prometheus as fake
from tests.rankskew.documents import SLOW_DATA, STAGES, hung, job, live, straggler
from tests.rankskew.servers import Answer, exporter_of, json_answer, serving
from tests.rankskew.views import drawn

Captured = pytest.CaptureFixture[str]

# ---- The view ------------------------------------------------------------------------------------

LATE = LateView(2, "all", "data", "persistent", 0.51, 1.9, 240.0, True)
RANK = Rank(0, "node-with-a-long-name-17", "0", "0", "GPU-0", 4711, STAGES, stage="forward")
LATE_RANK = replace(RANK, rank=2, late=LATE, stage_seconds=SLOW_DATA, pid=2222)
OTHERS = (
    replace(RANK, rank=3, silent=True, report_age_seconds=75.0),
    replace(RANK, rank=4, finished=True, late=replace(LATE, kind="mild")),
    replace(RANK, rank=5, stage="sync", stage_elapsed_seconds=190.0, report_age_seconds=1.0),
)
JOB = JobStatus(
    job_id="llama-70b-pretrain",
    state="straggler",
    sentence="Rank 2 is slow loading data; 1.90 of 8 GPUs wait for it.",
    details=("Steps take 1.48 times as long.",),
    first_action="`py-spy dump --pid 2222`",
    world_size=8,
    gpus_lost=1.94,
    cost_per_hour=4.85,
    late=(LATE, replace(LATE, rank=3)),
    culprit=(2, "data"),
    cause="input: workers",
    since_seconds=240.0,
    slowdown=1.48,
    steps=12_345,
    step_seconds=0.472,
    coverage=1.0,
)
HEALTHY = JobStatus("resnet", state="healthy", sentence="All is well.", world_size=8, gpus_lost=0.1)
UNPROBED = replace(HEALTHY, state="no_probe", world_size=None)


def focused(job: JobStatus, *ranks: Rank, seen: int = 0) -> FleetStatus:
    return FleetStatus("x", [replace(job, ranks=ranks, ranks_seen=seen)])


def test_views_are_the_golden_ones() -> None:
    """A wide terminal has all there is to know, a narrow one keeps what matters.

    Names are shortened before figures; without steps there are no empty columns.
    """
    jobs = [JOB, replace(HEALTHY, slowdown=1.004, step_seconds=0.3)]
    clusters = [replace(JOB, cluster="eu"), replace(HEALTHY, cluster="us", reason="no_sync")]
    small = [replace(HEALTHY, gpus_lost=lost, slowdown=1.006) for lost in (0.0, 0.97, 8.0)]
    ranks = focused(JOB, LATE_RANK, RANK, *OTHERS, seen=16_369)
    bare = focused(UNPROBED, replace(RANK, stage_seconds=None, stage=None))
    views = {
        "jobs, 160 columns": drawn(FleetStatus("x", jobs), 160),
        "jobs, 80 columns": drawn(FleetStatus("x", jobs), 80),
        "a long name": drawn(FleetStatus("x", [replace(JOB, job_id="[/data]" + "x" * 193)]), 80),
        "two clusters": drawn(FleetStatus("x", clusters), 160),
        "GPUs lost": drawn(FleetStatus("x", small), 120),
        "ranks, 160 columns": drawn(ranks, 160),
        "ranks, 100 columns": drawn(ranks, 100),
        "a rank without the probe": drawn(bare, 160),
    }
    assert_golden("top", views)


@pytest.mark.parametrize("width", [30, 60, 100, 240])
@pytest.mark.parametrize("name", ["llama", "x" * 200, "ジョブ" * 30])
def test_no_line_is_wider_than_the_terminal(width: int, name: str) -> None:
    """Long names of jobs and nodes are shortened, never wrapped by the terminal."""
    job = replace(JOB, job_id=name)
    for fleet in (
        FleetStatus("x", [job, HEALTHY, replace(HEALTHY, cluster=name)]),
        focused(job, LATE_RANK, RANK, replace(RANK, node=name)),
    ):
        assert max(cell_len(line) for line in drawn(fleet, width).splitlines()) <= width


def test_states_and_stages_have_their_colours() -> None:
    """Red needs someone now, orange soon, what is well is green; stages as on the dashboards."""
    for state, colour in {"hung": "31m", "ranks_missing": "38;5;208m", "healthy": "32m"}.items():
        fleet = FleetStatus("x", [replace(HEALTHY, state=state)])
        assert colour in drawn(fleet, 80, colours=True)
    ranks = drawn(focused(JOB, LATE_RANK, RANK), 120, colours=True)
    assert "38;2;230;159;0m" in ranks  # data, #e69f00


def test_ranks_that_need_a_look_have_the_first_rows() -> None:
    """The costliest late ranks, then those that are silent, then mild ones, then the others.

    What nobody can price is late all the same. Of a hung job, whom it waits for: a rank outside
    sync holds up the others; one that never stepped may be an evaluator.
    """

    def late(rank: int, gpus_lost: float, kind: str = "persistent") -> Rank:
        said = replace(LATE, rank=rank, gpus_lost=gpus_lost, kind=kind)
        return Rank(rank, late=said, stage="sync")

    def order(state: str, *ranks: Rank) -> list[int]:
        those = costliest_first(rank.late for rank in ranks if rank.late)
        job = JobStatus("x", state=state, late=those, ranks=ranks)
        return [rank.rank for rank in worth_a_row(job)]

    silent = Rank(3, silent=True)
    ranks = [Rank(0), late(1, 0.0), late(2, 0.1, "mild"), silent, late(4, 0.5), late(5, 1.5)]
    waiting = [Rank(rank, stage="sync", last_step_age_seconds=60.0) for rank in (0, 1)]
    evaluator = Rank(2, stage="eval")
    stuck = Rank(3, stage="backward", last_step_age_seconds=60.0)

    assert order("straggler", *ranks) == [5, 4, 1, 3, 2, 0]
    assert order("hung", *waiting, evaluator, stuck) == [3, 0, 1, 2]


# ---- The screen that stays -----------------------------------------------------------------------

CONTROL_C: Final = b"\x03"
LEAVE_SCREEN: Final = "\x1b[?1049l"


@dataclass
class Terminal:
    """A terminal of 24 lines and 100 columns in which `rankskew top` runs."""

    process: "subprocess.Popen[bytes]"
    keyboard: int
    shown: str = ""

    def wait_for(self, words: str) -> None:
        """Read what is shown until *words* are."""
        until = time.monotonic() + PATIENCE_SECONDS
        while words not in self.shown:
            ready, _, _ = select.select([self.keyboard], [], [], until - time.monotonic())
            assert ready, self.shown
            text = os.read(self.keyboard, 65536).decode(errors="replace")
            self.shown += re.sub(r"\x1b\[[0-9;]*m", "", text)


def heed_control_c() -> None:
    """Take the terminal as one's own, also where a shell in the background started the tests."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    keyboard, screen = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "rankskew", "top", *arguments],
        cwd=ROOT,
        stdin=screen,
        stdout=screen,
        stderr=screen,
        start_new_session=True,
        preexec_fn=heed_control_c,
    )
    os.close(screen)
    try:
        yield Terminal(process, keyboard)
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)


def test_it_goes_on_while_an_exporter_is_away_until_control_c() -> None:
    """A failure is a line above the last view; when the exporter is back, the line goes.

    It ends with status 0 and gives the terminal back as it was.
    """
    answers: list[Answer] = [json_answer(live(straggler()))]
    with (
        serving(lambda sent: answers[-1]) as url,
        terminal("--exporter", url, "--interval", "100ms") as opened,
    ):
        opened.wait_for("Rank 2 is slow loading data")
        answers.append((500, "text/plain", b""))
        opened.wait_for("answers 500 Internal Server Error. Trying again.")
        opened.shown = ""
        answers.append(json_answer(live(straggler(sentence="It is back."))))
        opened.wait_for("It is back.")
        os.write(opened.keyboard, CONTROL_C)

        opened.wait_for(LEAVE_SCREEN)
        assert opened.process.wait(PATIENCE_SECONDS) == 0
    assert "Traceback" not in opened.shown


def test_it_does_not_wait_for_a_server_that_hangs() -> None:
    """SIGTERM ends it as Ctrl-C does, also before the first answer, or that there is none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with terminal("--exporter", f"http://127.0.0.1:{port}") as opened:
            opened.wait_for("rankskew top")
            opened.process.send_signal(signal.SIGTERM)

            opened.wait_for(LEAVE_SCREEN)
            assert opened.process.wait(PATIENCE_SECONDS) == 0
    assert "no answer within" not in opened.shown


def test_what_was_seen_last_is_kept() -> None:
    """A failed read keeps the jobs; a successful one without jobs does not.

    A fault of ours ends it: it must not leave an old view on the screen.
    """
    old = FleetStatus("http://n", [HEALTHY], timestamp_seconds=1000.0)
    failed = FleetStatus("http://n", troubles=["It does not answer."])
    empty = FleetStatus("http://n")

    assert kept(failed, old) == replace(old, troubles=failed.troubles)
    assert kept(failed, None) is failed
    assert kept(empty, old) is empty
    with pytest.raises(ZeroDivisionError):
        show(lambda: FleetStatus(str(1 // 0)), 1.0)


def test_view_fits_the_height_and_tells_its_age() -> None:
    """The most urgent jobs are shown, the others counted; nobody takes an old view for now."""
    jobs = [JobStatus(f"job{number}", state="healthy") for number in range(100)]
    fleet = FleetStatus("x", jobs, ["One is away."], timestamp_seconds=1000.0)
    out = io.StringIO()
    Console(file=out, width=100).print(frame(fleet, 24, 1060.0))

    assert len(out.getvalue().splitlines()) <= 24
    for said in ("and 87 more jobs", "seen 60 s ago", "One is away. Trying again."):
        assert said in out.getvalue()


# ---- The command ---------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [["--once"], []])
def test_without_a_terminal_one_view_is_printed(flags: list[str], capsys: Captured) -> None:
    """A table without escape sequences, and status 0; of a Prometheus, with the cost."""
    with exporter_of(live(straggler(), job("calm"))) as url:
        assert main(["top", "--exporter", url, *flags]) == 0
    said = capsys.readouterr()
    with fake.recorded(*fake.straggler()).serve() as url:
        assert main(["top", "--prometheus", url, "--cluster", "eu", *flags]) == 0

    assert "Straggler  llama   1.9 of 8" in said.out
    assert ("\x1b" in said.out, said.err) == (False, "")
    assert "$0.75" in capsys.readouterr().out


def test_json_is_one_document(capsys: Captured) -> None:
    """--json prints all jobs; ranks only of the job that is named."""
    with exporter_of(live(straggler(), hung())) as url:
        assert main(["top", "--exporter", url, "--json"]) == 0
        fleet = json.loads(capsys.readouterr().out)
        assert main(["top", "--exporter", url, "--json", "--job", "llama"]) == 0
        one = json.loads(capsys.readouterr().out)

    assert [each["state"] for each in fleet["jobs"]] == ["hung", "straggler"]
    assert "ranks" not in fleet["jobs"][0]
    assert fleet["troubles"] == []
    (llama,) = one["jobs"]
    assert llama["culprit"] == {"rank": 2, "stage": "data"}
    assert [each["rank"] for each in llama["ranks"]] == [2, 0, 1, 3]
    assert llama["ranks"][0]["late"]["gpus_lost"] == 1.9


def test_trouble_is_one_line_and_status_2(capsys: Captured) -> None:
    """What does not answer is a sentence on stderr; a program has it in the document too."""
    with exporter_of(live()) as url:
        pass
    told = f"{url} does not answer: Connection refused."
    assert main(["top", "--exporter", url, "--once"]) == 2
    assert capsys.readouterr() == ("", f"rankskew: {told}\n")
    assert main(["top", "--exporter", url, "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["jobs"], document["troubles"]) == ([], [told])
