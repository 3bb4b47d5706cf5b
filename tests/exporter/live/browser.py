"""A headless Chromium that looks at the page: served on loopback, with answers made up for it."""

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
# The page in a frame of some width, and a script that looks at it and writes down what it finds.
HARNESS: Final = """<!doctype html><meta charset="utf-8"><title>harness</title>
<iframe id="page" src="/node/a/" style="width: {width}px; height: 700px; border: 0"></iframe>
<pre id="found">nothing</pre>
<script>
const frame = document.getElementById("page");
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const until = async (holds) => {{ for (let i = 0; i < 200 && !holds(); i++) await pause(50); }};
frame.onload = async () => {{
  const page = frame.contentDocument, win = frame.contentWindow;
  let found;
  try {{
    await until(() => page.getElementById("loading").hidden);
    found = await (async () => {{ {script} }})();
  }} catch (error) {{ found = {{ error: String(error) }}; }}
  document.getElementById("found").textContent = JSON.stringify(found);
}};
</script>"""


class Served:
    """An exporter that gives *answers* to one poll after the other, the last one for ever.

    None is an answer too: the exporter fails. The page is below a prefix, as behind a proxy.
    """

    def __init__(
        self, answers: Sequence[Mapping[str, Any] | bytes | None], harness: str = ""
    ) -> None:
        self.answers, self.harness, self.polls = list(answers), harness, 0
        self.asked: list[str] = []

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Return status, type and body for *path*."""
        bare = path.partition("?")[0]
        self.asked.append(path)
        if bare == "/harness":
            return 200, "text/html", self.harness.encode()
        if bare == "/axe.js":
            return 200, "text/javascript", AXE.read_bytes()
        name = bare.removeprefix("/node/a/")
        if name == "api/v1/live":
            return self._poll()
        file = name.removeprefix("static/") or "index.html"
        if file not in FILES:
            return 404, "text/plain", b""
        return 200, TYPES[file.rpartition(".")[2]], FILES[file]

    def _poll(self) -> tuple[int, str, bytes]:
        answer = self.answers[min(self.polls, len(self.answers) - 1)]
        self.polls += 1
        if answer is None:
            return 500, "text/plain", b""
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return 200, "text/json", body


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


def dom(url: str, folder: Path, milliseconds: int = 1_500, *flags: str) -> str:
    """Return the DOM of *url* as Chromium has it after so much of the page's own time."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "Chromium is needed to test the live page: apt-get install chromium"
    command = [chromium, *FLAGS.split(), *flags, f"--user-data-dir={folder}"]
    done = subprocess.run(
        [*command, f"--virtual-time-budget={milliseconds}", "--dump-dom", url],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def shown(answer: Mapping[str, Any] | None, folder: Path) -> str:
    """Return the page's DOM after the first answer."""
    with serving(Served([answer])) as url:
        return dom(f"{url}/node/a/", folder)


def found(
    answers: Sequence[Mapping[str, Any] | None],
    script: str,
    folder: Path,
    width: int = 1_200,
    seconds: int = 8,
    *flags: str,
) -> Any:
    """Run *script* beside the page, after the first answer, and return what it returns.

    It has `page`, its document, `win`, its window, and `pause(milliseconds)`.
    """
    harness = HARNESS.format(width=width, script=script)
    with serving(Served(answers, harness)) as url:
        text = dom(f"{url}/harness", folder, 1_000 * seconds, *flags)
    (told,) = re.findall(r'<pre id="found">(.*?)</pre>', text, flags=re.DOTALL)
    return json.loads(told.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
