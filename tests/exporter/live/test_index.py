"""The live page is one file, contacts only its exporter, and treats what it shows as text."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import exporter
from rank_probe.stages import STAGES

PAGE = Path(exporter.__file__).parent / "live" / "index.html"
TEXT = PAGE.read_text(encoding="utf-8")

RANK = {
    "rank": 0,
    "local_rank": "0",
    "gpu_uuid": None,
    "peer_group": "all",
    "steps": 60,
    "stage_seconds": {"data": 0.05, "forward": 0.1, "backward": 0.2, "sync": 0.15},
    "step_seconds": 0.5,
    "wait_seconds": 0.15,
    "stage": "sync",
    "stage_elapsed_seconds": 0.1,
    "heartbeat_age_seconds": 0.5,
    "last_step_age_seconds": 0.5,
    "silent": False,
    "finished": False,
}
LATE_RANK = RANK | {
    "rank": 2,
    "stage_seconds": {"data": 0.19, "forward": 0.1, "backward": 0.2, "sync": 0.01},
    "wait_seconds": 0.01,
}
LATE = {
    "rank": 2,
    "peer_group": "all",
    "stage": "data",
    "kind": "persistent",
    "ratio": 0.4,
    "gpus_lost": 0.84,
    "late_for_seconds": 35.0,
    "is_here": True,
}
SENTENCE = "Rank 2 is slow loading data; 0.84 of 4 GPUs wait for it."


DETAILS = ["Steps take 1.39 times as long as without it.", "GPUs lost: 0.84 to <late> ranks."]


def live(job_id: str = "demo", kind: str = "persistent") -> dict[str, Any]:
    """Return what the exporter serves for four ranks, the third late in this way."""
    ranks = [RANK, RANK | {"rank": 1}, LATE_RANK, RANK | {"rank": 3}]
    late = [LATE | {"rank": 17, "kind": kind, "is_here": False}, LATE | {"kind": kind}]
    verdict = {"state": "late", "sentence": SENTENCE, "reason": None, "late": late}
    job = {
        "job_id": job_id,
        "world_size": 4,
        "coverage": "4 of 4 ranks",
        "steps": 60,
        "step_seconds": 0.5,
        "verdict": verdict | {"details": DETAILS},
        "ranks": ranks,
    }
    return {"timestamp_seconds": 1.0, "window_seconds": 60.0, "jobs": [job], "version": "9.8.7"}


@contextmanager
def served(answer: Mapping[str, Any] | None) -> Iterator[str]:
    """Serve the page on loopback with *answer* behind it, or an exporter that fails."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = {"/": PAGE.read_bytes()}
            if answer is not None:
                known["/api/v1/live"] = json.dumps(answer).encode()
            self.send_response(200 if self.path in known else 500)
            self.send_header("Content-Type", "text/html" if self.path == "/" else "text/json")
            self.end_headers()
            self.wfile.write(known.get(self.path, b""))

        def log_message(self, *_: object) -> None:
            """Keep the test output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


def dump(answer: Mapping[str, Any] | None, folder: Path) -> str:
    """Return the page's DOM as Chromium has it after the first answer."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "Chromium is needed to test the live page: apt-get install chromium"
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
    quiet = "--disable-background-networking --disable-component-update"
    with served(answer) as url:
        command = [chromium, *flags.split(), *quiet.split(), f"--user-data-dir={folder}"]
        done = subprocess.run(
            [*command, "--virtual-time-budget=1500", "--dump-dom", url],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    # The script is part of the DOM; what it drew is what is asked for.
    return re.sub(r"<(script|style)>.*?</\1>", "", done.stdout, flags=re.DOTALL)


def test_page_loads_nothing_from_elsewhere() -> None:
    """No external address is in the page: it works on a cluster without internet."""
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", TEXT) == []


def test_page_never_writes_markup() -> None:
    """What training processes send is only ever text."""
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", TEXT)


def test_page_knows_every_stage() -> None:
    """Every stage a rank can report has a colour and its place in the legend."""
    (listed,) = re.findall(r"const STAGES = (\[.*?\]);", TEXT)

    assert json.loads(listed) == list(STAGES)
    assert all(re.search(rf"\.{stage} {{ background: ", TEXT) for stage in STAGES)


@pytest.mark.parametrize("tag", ["style", "script"])
def test_policy_allows_exactly_what_the_page_holds(tag: str) -> None:
    """The policy names the hash of the page's style and script, so nothing else can run."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", TEXT, flags=re.DOTALL)
    wanted = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()

    assert f"{tag}-src 'sha256-{wanted}'" in TEXT, f"edited? put sha256-{wanted} into the policy"


def test_late_rank_is_what_the_page_says_first(tmp_path: Path) -> None:
    """The verdict is in large letters; the late rank and its stage are marked."""
    dom = dump(live(), tmp_path)

    assert f'<p class="verdict">{SENTENCE}</p>' in dom
    assert '<tr class="late"><th scope="row">rank 2 · late</th>' in dom
    assert dom.count("culprit") == 1
    assert 'class="data culprit" title="data: 190 ms per step" style="width: 38%;"' in dom
    assert "late for 35 s" in dom
    assert "version 9.8.7" in dom


def test_details_stand_below_the_verdict(tmp_path: Path) -> None:
    """Further findings of the judge are one line each, as text."""
    dom = dump(live(), tmp_path)

    assert (
        "<li>Steps take 1.39 times as long as without it.</li>"
        "<li>GPUs lost: 0.84 to &lt;late&gt; ranks.</li>" in dom
    )


@pytest.mark.parametrize(("kind", "mark"), [("mild", "a little late"), ("unsynced", "stands out")])
def test_rank_that_wakes_nobody_is_marked_without_alarm(
    tmp_path: Path, kind: str, mark: str
) -> None:
    """A rank that is late a little is pointed at, and not in the colour of an alarm."""
    dom = dump(live(kind=kind), tmp_path)

    assert f'<tr><th scope="row">rank 2 · {mark}</th>' in dom
    assert dom.count("culprit") == 1
    assert "late for" not in dom


def test_job_id_is_shown_as_text(tmp_path: Path) -> None:
    """Markup in a job id is displayed, not run."""
    dom = dump(live("<img src=x onerror=alert(1)>"), tmp_path)

    assert "Job &lt;img src=x onerror=alert(1)&gt;" in dom
    assert "<img" not in dom


def test_empty_node_says_how_to_begin(tmp_path: Path) -> None:
    """Without any rank the page gives the command that starts one."""
    dom = dump({"jobs": [], "gpus_visible": 0}, tmp_path)

    assert "No rank has reported yet" in dom
    assert "-m rank_probe train.py" in dom
    assert "no GPU visible" in dom


def test_silent_exporter_is_admitted(tmp_path: Path) -> None:
    """When the exporter stops answering, the page shows that it is old."""
    dom = dump(None, tmp_path)

    assert "the exporter does not answer: HTTP status 500" in dom
