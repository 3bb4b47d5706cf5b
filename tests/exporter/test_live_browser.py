"""The page in a browser: it contacts only its exporter, says first what is wrong, and stays put."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from exporter.causes.model import Cause
from exporter.web.static import TYPES, page_files
from rank_probe.version import __version__
from tests.exporter.live_node import CAUSE, EVEN, Node, served
from tests.exporter.snapshots import late, verdict
from tests.rankskew.servers import Answer, Sent, json_answer, serving

pytestmark = pytest.mark.e2e

FILES: Final = page_files()
TEXTS: Final = {name: content.decode() for name, content in FILES.items()}
INDEX: Final = TEXTS["index.html"]
SCRIPTS: Final = "".join(text for name, text in TEXTS.items() if name.endswith(".js"))


def test_page_loads_nothing_from_elsewhere_and_writes_no_markup() -> None:
    """It works without internet and below any prefix; what processes send is only ever text.

    No inline script or style is there or may run.
    """
    everything = "".join(TEXTS.values()).replace("http://www.w3.org/2000/svg", "")

    assert re.findall(r"(?:https?:)?//[\w-]+\.\w+", everything) == []
    assert re.findall(r'(?:href|src)="/', INDEX) == []
    assert re.findall(r'fetch\("/|from "/', SCRIPTS) == []
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", SCRIPTS)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', INDEX)
    own = "; ".join(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect"))
    assert policy == f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    assert not re.search(r"<style|<script(?![^>]* src=)| on\w+=| style=", INDEX)


WORKERS = Cause(
    "input",
    "workers",
    0.81,
    "2 of its loader's workers cannot keep up (running `Corpus.__getitem__`), 0 of its peers'",
    "print how long its samples are",
    "saturated_workers",
    2.0,
    0.0,
)
UNKNOWN = replace(CAUSE, cause="unknown", detail="", share=0.3, sentence="", value=None)
SENTENCE = "Rank 2 is slow loading data; 1.00 of 4 GPUs wait for it."
LINE = {"stage": "data", "place": "Corpus.__next__ (corpus.py:41)", "share": 0.71}


def serves(
    said: dict[str, Any], ranks: int = 4, job_id: str = "demo", cause: Cause | None = None
) -> dict[str, Any]:
    """Return what the exporter serves of a job of which the judge has *said* this.

    *cause* is why its rank 2 is late.
    """
    node = Node(ranks, gpus=ranks, job_id=job_id)
    node.cause, node.said = cause, said
    node.change(2, late_lines=[LINE], stage="data")
    node.run(10)
    return served(node.view)


def quiet(**node: Any) -> dict[str, Any]:
    """Return what it serves of a node on which nobody pushes."""
    silent = Node(0, **node)
    silent.pass_second()
    return served(silent.view)


def hung() -> dict[str, Any]:
    """Return what it serves of a job of eight that rank 5 holds up."""
    node = Node(8, gpus=8)
    node.run(10)
    node.change(5, stage="data")
    node.wait(122)
    answer = served(node.view)
    ranks = answer["jobs"][0]["ranks"]
    ranks.append(ranks[0] | {"rank": 8, "stage": "", "last_step_age_seconds": None})  # No probe.
    return answer


def in_the_first_step(answer: dict[str, Any]) -> dict[str, Any]:
    """Return *answer* of a job of which no rank has stepped."""
    for rank in answer["jobs"][0]["ranks"]:
        rank["last_step_age_seconds"] = None
    return answer


def troubled() -> dict[str, Any]:
    """Return what it serves of twelve ranks on as many GPUs, some with something wrong."""
    answer = serves(verdict(), ranks=12)
    answer["gpus"][2] |= {"throttle_reasons": ["sw_thermal_slowdown", "hw_thermal_slowdown"]}
    answer["gpus"][5] |= {"pcie_link_width": 8, "foreign_processes": 2}
    answer["gpus"][9] |= {"up": False}
    return answer


def later(answer: dict[str, Any]) -> dict[str, Any]:
    """Return *answer* some seconds on, with other figures and the same rows."""
    answer["jobs"][0]["steps"] = 1_300
    for rank in answer["jobs"][0]["ranks"]:
        rank |= {"heartbeat_age_seconds": 4.0, "stage": "forward"}
    answer["gpus"][3]["temperature_celsius"] = 88
    return answer


def judged_by(judge: str | None, answer: dict[str, Any]) -> dict[str, Any]:
    """Return *answer* with this judge; with None as another version might give it."""
    answer["jobs"][0]["verdict"] = judge and answer["jobs"][0]["verdict"] | {"judge": judge}
    return answer


# The answers to the polls, the last one repeated (None: a failure), and a script that inspects the
# page after the first answer. It has `page`, `win`, its window, `frame` and `until`.
Visit = tuple[Sequence[Mapping[str, Any] | None], str]

# What a reader, or a screen reader, finds.
READ: Final = """
  const all = (where, what) => [...page.querySelectorAll(where)].map(what);
  const seen = { text: page.body.innerText, title: page.title,
    rows: all("tbody th", (each) => each.innerText),
    codes: all("#jobs code", (each) => each.textContent),
    links: all("a:not([hidden])", (each) => each.getAttribute("href")),
    marked: all("tr.late th", (each) => each.innerText),
    reports: all("[data-name='Last report']", (each) => each.innerText),
    blamed: all(".culprit", (each) => [each.title,
      Math.round(100 * each.clientWidth / each.parentElement.clientWidth)]) };
"""
# What of it cannot be read: in the light, on a phone, or in the dark.
AUDIT: Final = """
  const tool = page.createElement("script");
  tool.src = "/axe.js";
  const loaded = new Promise((done) => { tool.onload = done; });
  page.head.append(tool);
  await loaded;
  const violations = async (only) => (await win.axe?.run(page,
    { resultTypes: ["violations"], ...only }))
    ?.violations.map(({ id, nodes }) => id + nodes[0].html + nodes[0].failureSummary);
  seen.light = await violations();

  frame.style.width = "390px";
  const row = page.querySelector("tbody tr");
  seen.scrolls = page.documentElement.scrollWidth > win.innerWidth;
  seen.wide = all("main *", (each) => each)
    .filter((each) => each.getBoundingClientRect().right > win.innerWidth + 0.5)
    .filter((each) => !each.closest("thead")).map((each) => each.outerHTML.slice(0, 120));
  seen.card = row && [win.getComputedStyle(row).display,
    win.getComputedStyle(row.querySelector("td.number"), "::before").content,
    row.querySelector(".bar").getBoundingClientRect().width > 300];

  frame.style.width = "1200px";
  frame.style.colorScheme = "dark";
  await until(() => win.matchMedia("(prefers-color-scheme: dark)").matches);
  seen.dark = await violations({ runOnly: ["color-contrast"] });
"""


@cache
def audited() -> dict[str, Mapping[str, Any] | None]:
    """Return the answers of which every rule of axe is asked."""
    return {
        "cause": serves(verdict(), cause=CAUSE),
        "hung": hung(),
        "no probe": quiet(gpus=4, job_id="bert"),
        "empty": quiet(),
        "troubled": troubled(),
        "silent": None,
    }


def pages() -> dict[str, Mapping[str, Any]]:
    """Return other answers."""
    return {
        "straggler": serves(verdict()),
        "unknown": serves(verdict(), cause=UNKNOWN),
        "workers": serves(verdict(late=(late(rank=170), late())), cause=WORKERS),
        "judged here": judged_by("node", serves(verdict(late=(late(kind="mild"),)))),
        "first step": in_the_first_step(hung()),
        "hostile": serves(verdict(), job_id="<img src=x onerror=alert(1)>")
        | {"grafana_url": "javascript:alert(1)"},
    }


# What the page says if the second answer does not come, or is not understood.
TROUBLE: Final = """
  const trouble = page.getElementById("trouble");
  await until(() => !trouble.hidden);
  const job = page.querySelector("#jobs .job");
  return { said: trouble.textContent, job: job !== null, stale: page.body.className };
"""


@cache
def visits() -> dict[str, Visit]:
    """Return what is looked at, by name."""
    return {
        **{name: ([answer], f"{READ}{AUDIT} return seen;") for name, answer in audited().items()},
        **{name: ([answer], f"{READ} return seen;") for name, answer in pages().items()},
        "no answer": ([audited()["hung"], None], TROUBLE),
        "other version": ([audited()["hung"], judged_by(None, hung())], TROUBLE),
        # What happens to the page between its first answer and the next.
        "selection": (
            [audited()["troubled"], later(troubled())],
            """
            const code = page.querySelector(".facts code");
            const rows = [...page.querySelectorAll("tbody tr")];
            win.getSelection().selectAllChildren(code);
            win.scrollTo(0, 300);
            await until(() => page.body.textContent.includes("1300 steps"));
            return { selected: String(win.getSelection()), scrolled: win.scrollY,
              same: rows.every((row, place) => row === page.querySelectorAll("tbody tr")[place]),
              updated: page.body.textContent.includes("88 °C") };
            """,
        ),
        "late since": (
            [serves(EVEN), serves(verdict())],
            """
            const before = page.querySelectorAll("tbody tr")[2];
            await until(() => page.querySelector("tr.late"));
            return [...page.querySelectorAll("tbody tr")].indexOf(before);
            """,
        ),
        "job gone": (
            [audited()["hung"], audited()["empty"]],
            """
            await until(() => !page.querySelector("#jobs .job"));
            return page.getElementById("empty").hidden;
            """,
        ),
    }


AXE: Final = Path(__file__).parents[2] / ".node" / "node_modules" / "axe-core" / "axe.min.js"
FLAGS: Final = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --dump-dom"
)
# Each page in a frame, one after the other, and what its script returns.
HARNESS: Final = """<!doctype html><meta charset="utf-8"><title>harness</title>
<link rel="icon" href="data:,">
<pre id="found">nothing</pre>
<script>
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const until = async (holds) => {{ for (let i = 0; i < 200 && !holds(); i++) await pause(50); }};
const look = (number, script) => new Promise((done) => {{
  const frame = document.createElement("iframe");
  frame.src = `/node/${{number}}/`;
  frame.style = "width: 1200px; height: 700px; border: 0; color-scheme: light";
  frame.onload = async () => {{
    const page = frame.contentDocument, win = frame.contentWindow;
    try {{
      await until(() => page.getElementById("loading").hidden);
      done(await script(page, win, frame));
    }} catch (error) {{ done({{ error: String(error) }}); }}
    frame.remove();
  }};
  document.body.append(frame);
}});
(async () => {{
  const all = [];
  for (const script of [{scripts}]) all.push(await look(all.length, script));
  document.getElementById("found").textContent = JSON.stringify(all);
}})();
</script>"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one Chromium finds in all visits(), each below a prefix as behind a proxy, by name."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "Chromium is needed to test the live page: apt-get install chromium"
    scripts = (f"async (page, win, frame) => {{{script}}}" for _, script in visits().values())
    harness = HARNESS.format(scripts=",\n".join(scripts))
    left = [list(answers) for answers, _ in visits().values()]

    def answer(sent: Sent) -> Answer:
        path = sent.path.partition("?")[0]
        if path == "/harness":
            return 200, "text/html", harness.encode()
        if path == "/axe.js":
            return 200, "text/javascript", AXE.read_bytes() if AXE.exists() else b""
        _, _, number, name = path.split("/", 3)
        if name == "api/v1/live":
            answers = left[int(number)]
            said = answers.pop(0) if len(answers) > 1 else answers[0]
            return (500, "", b"") if said is None else json_answer(said)
        file = name.removeprefix("static/") or "index.html"
        return 200, TYPES[file.rpartition(".")[2]], FILES[file]

    milliseconds = 10_000 * len(visits())  # Of the page's own time, which runs faster.
    with serving(answer) as url:
        done = subprocess.run(
            [
                *(chromium, *FLAGS.split(), f"--virtual-time-budget={milliseconds}"),
                *(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}", f"{url}/harness"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    (told,) = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    return dict(zip(visits(), json.loads(html.unescape(told)), strict=True))


def test_late_rank_is_what_the_page_says_first(found: dict[str, Any]) -> None:
    """The verdict, what to do first, and the late rank before the others, with its stage.

    Code and links are what they look like, and what raises no alert is not drawn as if it did.
    """
    page = found["straggler"]

    assert page["title"] == "Straggler · gpu-12 · rankskew"
    assert page["rows"] == ["rank 2 · late 30 s", "rank 0", "rank 1", "rank 3"]
    assert page["marked"] == ["rank 2 · late 30 s"]
    assert page["blamed"] == [["data: 190 ms per step", 38]]
    assert page["codes"] == ["py-spy dump --pid 102"]
    grafana = "http://grafana:3000/d/rankskew-job?var-job_id=demo"
    assert {"runbooks/RankskewStraggler", grafana} <= set(page["links"])
    assert found["workers"]["codes"] == ["Corpus.__getitem__"]
    assert found["cause"]["codes"] == ["nvidia-smi -q -i 2"]
    assert found["cause"]["text"].count("too hot, 87 °C") == 1
    assert not [each for each in found["hostile"]["links"] if each and "javascript" in each]
    assert [found["hung"]["rows"][0]] == found["hung"]["marked"] == ["rank 5"]
    assert found["hung"]["reports"][-1] == "–"
    assert "Infinity" not in found["first step"]["text"]
    assert found["judged here"]["marked"] == found["no probe"]["marked"] == []


# What each page has, and what it has not.
SHOWN: Final = {
    "straggler": (
        [
            *(SENTENCE, "1.75 of 4 GPUs lost", "30 s ago", "py-spy dump --pid 102 on gpu-12"),
            "data: 71 % in Corpus.__next__ (corpus.py:41)",
            "gpu-12 · PID 102 · GPU 2 · local rank 2",
            f"version {__version__}",
            "Steps take 1.44 times as long as without it.",
        ],
        ["Cause", "compared with the ranks of this node only"],
    ),
    # Why, how much of the delay that is, and what else it might be; once.
    "cause": (
        [
            f"Slow GPU (clock): {CAUSE.sentence}; 92 % of its delay.",
            f"Or perhaps CPU (waits for a CPU): {CAUSE.others[0].sentence}; 20 % of its delay.",
            "cause: slow GPU (clock): 1.41 GHz, its peers 1.95 GHz",
            "nvidia-smi -q -i 2 on gpu-12",
        ],
        ["Cause: "],
    ),
    # What was found is only a guess then, and has no share.
    "unknown": (["Not known.\nOr perhaps CPU (waits for a CPU): ", "cause: not known"], []),
    # Code is what stands between backticks, and an action of a cause may have none.
    "workers": (
        [
            "Rank 2: loader (workers at their limit): 2 of its loader's workers",
            "(running Corpus.__getitem__), 0 of its peers'; 81 % of its delay.",
            "print how long its samples are",
            "cause: loader (workers at their limit): 2, its peers 0",
        ],
        ["`"],
    ),
    # A node that compares its own ranks does not see those of the others.
    "judged here": (["compared with the ranks of this node only", "· a little late"], ["Since"]),
    "hung": (["8 of 8 GPUs lost", "2 min ago", "data for 2 min"], []),
    "no probe": (["Job bert", "torchrun ... -m rank_probe train.py", "PID 101"], ["Cost"]),
    # Markup in a job id is displayed, not run; what is no web address becomes no link.
    "hostile": (["Job <img src=x onerror=alert(1)>", SENTENCE], ["Dashboard in Grafana"]),
    "empty": (["No rank has reported yet", "rank_probe train.py", "no GPU visible"], ["Job "]),
    "troubled": (["sw thermal slowdown", "PCIe ×8 of ×16", "2 foreign", "does not answer"], []),
    "silent": (["This page is out of date: the exporter does not answer (HTTP status 500)."], []),
}


@pytest.mark.parametrize("name", SHOWN)
def test_page_shows_what_is_known(found: dict[str, Any], name: str) -> None:
    """Of each kind of job, of an empty node, and of an exporter that does not answer."""
    text, (there, absent) = found[name]["text"], SHOWN[name]

    assert [each for each in there if each not in text] == []
    assert [each for each in absent if each in text] == []


def test_page_can_be_read_by_all(found: dict[str, Any]) -> None:
    """Nothing is wider than a phone, where each rank is a card: the name before each figure.

    axe finds nothing: contrast, also in the dark, names of rows and pictures, headings.
    """
    for name in audited():
        assert (found[name]["scrolls"], found[name]["wide"]) == (False, []), name
    assert found["troubled"]["card"] == ["block", '"Own work "', True]
    if not AXE.exists():
        pytest.skip("axe-core is not installed; scripts/setup.sh test does that where npm works")
    for name in audited():
        assert (found[name]["light"], found[name]["dark"]) == ([], []), name


def test_only_what_differs_is_changed(found: dict[str, Any]) -> None:
    """Text that is being copied stays selected, and nothing jumps, while the figures change.

    A rank that becomes late is first from then on, in the row that it had; what the exporter no
    longer knows is taken away, and the hint for an empty node is back.
    """
    assert found["selection"] == {
        "selected": "py-spy dump --pid 102",
        "scrolled": 300,
        "same": True,
        "updated": True,
    }
    assert (found["late since"], found["job gone"]) == (0, False)


def test_answer_that_does_not_come_or_cannot_be_shown_is_admitted(found: dict[str, Any]) -> None:
    """The last state stays, greyed out; the sentence above it tells network and version apart."""
    silent, other = found["no answer"], found["other version"]

    assert "the exporter does not answer (HTTP status 500)" in silent["said"]
    assert "The data below is" in silent["said"]
    assert (silent["job"], silent["stale"]) == (True, "stale")
    assert "it cannot display the exporter's answer" in other["said"]
