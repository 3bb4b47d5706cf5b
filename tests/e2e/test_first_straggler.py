"""The tutorial, typed in as it stands."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from devstack.process import free_port

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "first_straggler.md"
EXAMPLE = Path("demo/first_straggler.py")
LINE = "        tokens = tokenize(text)[:TOKENS]"
TIMEOUT_SECONDS = 240
# A reader waits half a minute; a test asks until the command says what the page promises.
EXPECT = """
set -m
expect() {
  local status=$1 word=$2; shift 2
  for _ in $(seq 100); do
    "$@" > said
    [ $? = "$status" ] && grep -q -- "$word" said && break
    sleep 1
  done
  echo "== $* exits with $status"; cat said
}
"""


def script(page: str, directory: Path) -> str:
    """Return the page's commands as a script that repeats each query until its answer is there."""
    lines = "".join(re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    for here, there in (
        ("source .venv/bin/activate", "true"),
        (f"git checkout {EXAMPLE}", "true"),
        ("127.0.0.1:9917", f"127.0.0.1:{free_port()}"),
        ("/tmp/rankskew.sock", str(directory / "exporter.sock")),
    ):
        assert here in lines
        lines = lines.replace(here, there)
    slow = 1 + (ROOT / EXAMPLE).read_text().splitlines().index(LINE)
    for command, seen in (
        ("top", "0 first"),
        ("diagnose", f"1 '{EXAMPLE.name}:\\({slow}\\|{slow + 1}\\)'"),
        ("diagnose", "0 'mended: healthy'"),
    ):
        start = rf"^rankskew {command}"
        lines = re.sub(
            start, f"expect {seen} rankskew {command}", lines, count=1, flags=re.MULTILINE
        )
    return EXPECT + lines


def test_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    """The commands name the line to fix, and after the fix they find nothing."""
    (tmp_path / EXAMPLE).parent.mkdir(parents=True)
    shutil.copy(ROOT / EXAMPLE, tmp_path / EXAMPLE)
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-c", script(PAGE.read_text(), tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = shell.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        if shell.poll() is None:
            for process in psutil.Process(shell.pid).children(recursive=True):
                process.kill()
            shell.kill()
    seen, _, mended = said.partition("exits with 0\n")[2].partition("exits with 0\n")

    assert "Rank 2 is slow loading data" in seen, said
    assert f"{EXAMPLE.name}:" in seen
    assert "mended: healthy" in mended, said
