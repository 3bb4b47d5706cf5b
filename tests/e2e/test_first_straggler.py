"""The tutorial, typed in as it stands."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from demo.process import free_port

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "first_straggler.md"
EXAMPLE = Path("docs/examples/first_straggler.py")
TIMEOUT_SECONDS = 240
# A reader waits half a minute; a test asks until the command exits as the page says.
EXPECT = """
set -m
expect() {
  local status=$1; shift
  for _ in $(seq 100); do
    "$@" > said; [ $? = "$status" ] && break
    sleep 1
  done
  echo "== $* exits with $status"; cat said
}
"""


def script(page: str, directory: Path) -> str:
    """Return the page's commands for a shell; each that looks is repeated until it sees."""
    lines = "".join(re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    for here, there in (
        ("source .venv/bin/activate", "true"),
        (f"git checkout {EXAMPLE}", "true"),
        ("127.0.0.1:9917", f"127.0.0.1:{free_port()}"),
        ("/tmp/rankskew.sock", str(directory / "exporter.sock")),
    ):
        assert here in lines
        lines = lines.replace(here, there)
    lines = lines.replace("rankskew top", "expect 0 rankskew top")
    for status in (1, 0):
        lines = re.sub(
            r"^rankskew diagnose",
            f"expect {status} rankskew diagnose",
            lines,
            count=1,
            flags=re.MULTILINE,
        )
    return EXPECT + lines


def test_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    """It names the line to mend; when that is mended, nothing is found any more."""
    (tmp_path / EXAMPLE).parent.mkdir(parents=True)
    shutil.copy(ROOT / EXAMPLE, tmp_path / EXAMPLE)
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script(PAGE.read_text(), tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "STEPS": "100000"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    seen, _, mended = done.stdout.partition("exits with 0\n")[2].partition("exits with 0\n")

    slow = 1 + (ROOT / EXAMPLE).read_text().splitlines().index(
        "        tokens = tokenize(text)[:TOKENS]"
    )
    assert "Rank 2 is slow loading data" in seen, done.stdout + done.stderr
    assert f"first_straggler.py:{slow}" in seen
    assert "mended: healthy" in mended
