"""A headless Chromium that looks at the page: served on loopback, with answers made up for it."""

import html
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from exporter.web.static import TYPES, page_files

FILES: Final = page_files()
AXE: Final = Path(__file__).parents[3] / ".node" / "node_modules" / "axe-core" / "axe.min.js"
FLAGS: Final = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update"
)
# The page in a frame of some width for each list of answers, one after the other, and a script that
# looks at it and returns what it finds.
HARNESS: Final = """<!doctype html><meta charset="utf-8"><title>harness</title>
<link rel="icon" href="data:,">
<pre id="found">nothing</pre>
<script>
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const until = async (holds) => {{ for (let i = 0; i < 200 && !holds(); i++) await pause(50); }};
const look = (number) => new Promise((done) => {{
  const frame = document.createElement("iframe");
  frame.src = `/node/${{number}}/`;
  frame.style = "width: {width}px; height: 700px; border: 0";
  frame.onload = async () => {{
    const page = frame.contentDocument, win = frame.contentWindow;
    try {{
      await until(() => page.getElementById("loading").hidden);
      done(await (async () => {{ {script} }})());
    }} catch (error) {{ done({{ error: String(error) }}); }}
    frame.remove();
  }};
  document.body.append(frame);
}});
(async () => {{
  const all = [];
  for (let number = 0; number < {pages}; number++) all.push(await look(number));
  document.getElementById("found").textContent = JSON.stringify(all);
}})();
</script>"""
# What a reader, or a screen reader, finds.
READ: Final = """
  const all = (where, what) => [...page.querySelectorAll(where)].map(what);
  return { text: page.body.innerText, title: page.title,
    rows: all("tbody th", (each) => each.innerText),
    codes: all("#jobs code", (each) => each.textContent),
    links: all("a:not([hidden])", (each) => each.getAttribute("href")),
    blamed: all(".culprit", (each) => [each.title, each.style.width]),
    marked: all("tr.late th", (each) => each.innerText) };
"""
Answers = Sequence[Mapping[str, Any] | None]


class Served:
    """An exporter for each of *pages*, below a prefix as behind a proxy.

    It gives its answers to one poll after the other, the last one for ever; None: it fails.
    """

    def __init__(self, pages: Sequence[Answers], harness: str) -> None:
        self._left = [list(answers) for answers in pages]
        self._harness = harness

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Return status, type and body for *path*."""
        bare = path.partition("?")[0]
        if bare == "/harness":
            return 200, "text/html", self._harness.encode()
        if bare == "/axe.js":
            return 200, "text/javascript", AXE.read_bytes()
        _, _, number, name = bare.split("/", 3)
        if name == "api/v1/live":
            left = self._left[int(number)]
            said = left.pop(0) if len(left) > 1 else left[0]
            return (500, "text/plain", b"") if said is None else (200, "text/json", _json(said))
        file = name.removeprefix("static/") or "index.html"
        if file not in FILES:
            return 404, "text/plain", b""
        return 200, TYPES[file.rpartition(".")[2]], FILES[file]


def _json(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said).encode()


@contextmanager
def serving(served: Served) -> Iterator[str]:
    """Serve *served* on loopback; gives its address, without a slash."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = served.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep the test output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def looks(
    pages: Sequence[Answers], script: str, folder: Path, width: int = 1_200, *flags: str
) -> list[Any]:
    """Run *script* beside each of *pages* after its first answer; return what it returns.

    It has `page`, its document, `win`, its window, `until(holds)` and `pause(milliseconds)`.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "Chromium is needed to test the live page: apt-get install chromium"
    harness = HARNESS.format(width=width, script=script, pages=len(pages))
    seconds = 10 + 8 * len(pages)  # Of the page's own time, which runs faster.
    with serving(Served(pages, harness)) as url:
        done = subprocess.run(
            [
                *(chromium, *FLAGS.split(), *flags, f"--user-data-dir={folder}"),
                *(f"--virtual-time-budget={1_000 * seconds}", "--dump-dom", f"{url}/harness"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    told: list[Any] = json.loads(html.unescape(found))
    return told


def found(answers: Answers, script: str, folder: Path) -> Any:
    """Return what *script* returns beside one page."""
    (told,) = looks([answers], script, folder)
    return told
