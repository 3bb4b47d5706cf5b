"""The page in a browser: it contacts only its exporter, says first what is wrong, and stays put."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.causes.model import Cause
from tests.exporter.live.browser import AXE, FILES, found, shown
from tests.exporter.live.node_data import (
    CAUSE,
    SENTENCE,
    healthy,
    hung,
    live,
    no_probe,
    straggler,
    troubled_gpus,
)

TEXTS = {name: content.decode() for name, content in FILES.items()}
INDEX = TEXTS["index.html"]
SCRIPTS = "".join(text for name, text in TEXTS.items() if name.endswith(".js"))


def test_page_loads_nothing_from_elsewhere_and_writes_no_markup() -> None:
    """It works without internet and below any prefix; what processes send is only ever text."""
    everything = "".join(TEXTS.values()).replace("http://www.w3.org/2000/svg", "")

    assert re.findall(r"(?:https?:)?//[\w-]+\.\w+", everything) == []
    assert re.findall(r'(?:href|src)="/', INDEX) == []
    assert re.findall(r'fetch\("/|from "/', SCRIPTS) == []
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", SCRIPTS)


def test_policy_allows_the_exporters_own_files_only() -> None:
    """No inline script or style is there or may run; the icon may be shown."""
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', INDEX)

    assert policy.split("; ") == [
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert "<style" not in INDEX
    assert not re.search(r"<script(?![^>]* src=)| on\w+=| style=", INDEX)
    assert 'rel="icon" type="image/svg+xml" href="static/icon.svg"' in INDEX


def test_late_rank_is_what_the_page_says_first(tmp_path: Path) -> None:
    """The verdict, its cost, since when, what to do first, and the late rank before the others."""
    dom = shown(live(straggler(), grafana_url="http://grafana:3000"), tmp_path)

    assert f'<p class="verdict">{SENTENCE}</p>' in dom
    assert "1.78 of 4 GPUs lost" in dom
    assert "<dt>Since</dt><dd>35 s ago</dd>" in dom
    assert "<dd><code>py-spy dump --pid 20775</code> on gpu-12</dd>" in dom
    assert 'href="runbooks/RankskewStraggler"' in dom
    assert 'href="http://grafana:3000/d/rankskew-job?var-job_id=demo"' in dom
    rows = re.findall(r'<th scope="row">(.*?)</th>', dom)
    assert rows == ["rank 2 · late 35 s", "rank 0", "rank 1", "rank 3"]
    assert dom.count("culprit") == 1
    assert 'class="data culprit" title="data: 190 ms per step" style="width: 38%;"' in dom
    assert "data: 71 % in Corpus.__next__ (corpus.py:41)" in dom
    assert "gpu-12 · PID 20775 · GPU 2 · local rank 2" in dom
    assert "version 9.8.7" in dom
    assert "<title>Straggler · gpu-12 · rankskew</title>" in dom
    assert '<dt hidden="">Cause</dt>' in dom  # A rank of another node may have one.
    assert "compared with the ranks of this node only" not in dom
    assert (
        "<li>Steps take 1.39 times as long as without it.</li>"
        "<li>GPUs lost: 0.84 to &lt;late&gt; ranks.</li>" in dom
    )


def test_cause_is_told_with_its_share_and_figures(tmp_path: Path) -> None:
    """Why the rank is late, how much of its delay that is, and what else it might be; once."""
    dom = shown(live(straggler(cause=CAUSE)), tmp_path)

    assert (
        '<dt>Cause</dt><dd><ul class="causes">'
        "<li>Rank 2: slow GPU (clock): its SM clock is 1.41 GHz, its peers' 1.95: too hot, 87 °C; "
        "92 % of its delay.</li>"
        "<li>Or perhaps CPU (waits for a CPU): it waits for a CPU 9 % of the time, its peers 1 %; "
        "20 % of its delay.</li></ul>" in dom
    )
    assert "<div>cause: slow GPU (clock): 1.41 GHz, its peers 1.95 GHz</div>" in dom
    assert dom.count("too hot, 87 °C") == 1
    assert "<dd><code>nvidia-smi -q -i 2</code> on gpu-12</dd>" in dom


WORKERS = Cause(
    "input",
    "workers",
    0.81,
    "2 of its loader's workers cannot keep up (running `Corpus.__getitem__`), 0 of its peers'",
    "print how long its samples are",
    "saturated_workers",
    2.0,
    0.0,
    (),
)
UNKNOWN = replace(CAUSE, cause="unknown", detail="", share=0.3, sentence="", value=None)
A_LITTLE_LATE = '<tr class=""><th scope="row">rank 2 · a little late</th>'


@pytest.mark.parametrize(
    ("answer", "there", "absent"),
    [
        # What was found is only a guess then, and has no share.
        (
            live(straggler(cause=UNKNOWN)),
            [
                "<li>Rank 2: not known.</li><li>Or perhaps CPU (waits for a CPU): ",
                "<div>cause: not known</div>",
            ],
            [],
        ),
        # Code is what stands between backticks, and an action of a cause may have none.
        (
            live(straggler(cause=WORKERS)),
            [
                "(running <code>Corpus.__getitem__</code>), 0 of its peers'; 81 % of its delay.",
                "<dd>print how long its samples are</dd>",
                "<div>cause: loader (workers at their limit): 2, its peers 0</div>",
            ],
            ["`"],
        ),
        # A node that compares its own ranks does not see those of the others.
        (live(straggler(judge="node")), ["compared with the ranks of this node only"], []),
        # What raises no alert is not drawn as if it did, however steadily it is late.
        (live(straggler(costs_enough=False)), [A_LITTLE_LATE], []),
        (live(straggler(kind="mild")), [A_LITTLE_LATE, '<dt hidden="">Since</dt>'], []),
        (
            live(straggler(kind="unsynced")),
            [
                '<tr class=""><th scope="row">rank 2 · stands out</th>',
                '<dt hidden="">Since</dt>',
            ],
            [],
        ),
        # Nothing to do, no cost, nobody marked.
        (
            live(healthy(), gpus=4),
            [
                '<section class="job healthy green">',
                '<span class="badge">Healthy</span>',
                *(f'<dt hidden="">{name}</dt>' for name in ("Cost", "Since", "Do first")),
            ],
            ['class="late"'],
        ),
        (
            live(no_probe(), gpus=4),
            ["Job bert", "torchrun ... -m rank_probe train.py", "PID 20773"],
            [],
        ),
        # Markup in a job id is displayed, not run.
        (
            live(straggler("<img src=x onerror=alert(1)>")),
            ["Job &lt;img src=x onerror=alert(1)&gt;"],
            ["<img"],
        ),
        # What is not a web address becomes no link, whoever put it there.
        (live(straggler(), grafana_url="javascript:alert(1)"), [SENTENCE], ["javascript:"]),
        (
            live(),
            ['<section id="empty" class="job">', "-m rank_probe train.py", "no GPU visible"],
            [],
        ),
        (
            None,
            ["This page is out of date: the exporter does not answer (HTTP status 500)."],
            [],
        ),
    ],
)
def test_page_shows_what_is_known(
    answer: dict[str, Any] | None, there: list[str], absent: list[str], tmp_path: Path
) -> None:
    """Of each kind of job, of an empty node, and of an exporter that does not answer."""
    dom = shown(answer, tmp_path)

    assert [each for each in there if each not in dom] == []
    assert [each for each in absent if each in dom] == []


def test_hung_job_costs_all_its_gpus(tmp_path: Path) -> None:
    """While nobody steps everything is lost, and the rank that holds it up comes first."""
    dom = shown(live(hung()), tmp_path)

    assert "8 of 8 GPUs lost" in dom
    assert "<dt>Since</dt><dd>96 s ago</dd>" in dom
    assert re.findall(r'<th scope="row">(.*?)</th>', dom)[0] == "rank 5"
    assert "checkpoint for 95 s" in dom


LARGE = live(straggler(count=64), grafana_url="http://grafana:3000") | {"gpus": troubled_gpus()}
PHONE = 390
AXE_RUN = """
  const tool = page.createElement("script");
  tool.src = "/axe.js";
  page.head.append(tool);
  await until(() => win.axe);
  const result = await win.axe.run(page, { resultTypes: ["violations"] });
  return result.violations.map(({ id, nodes }) => id + nodes[0].html + nodes[0].failureSummary);
"""
PAGES = {
    "healthy": live(healthy(), gpus=4),
    "straggler": live(straggler(), gpus=4, grafana_url="http://grafana:3000"),
    "hung": live(hung(), gpus=8),
    "no probe": live(no_probe(), gpus=4),
    "empty": live(),
    "large": LARGE,
}


@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, "light") for name in PAGES), ("straggler", "dark"), ("large", "dark")],
)
def test_page_can_be_read_by_all(name: str, mode: str, tmp_path: Path) -> None:
    """axe finds nothing: contrast, names of rows and pictures, the order of headings."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed; scripts/setup.sh test does that where npm works")
    flags = ["--blink-settings=preferredColorScheme=0"] if mode == "dark" else []

    assert found([PAGES[name]], AXE_RUN, tmp_path, 1_200, 20, *flags) == []


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_a_phone(name: str, tmp_path: Path) -> None:
    """On a phone each rank is a card, and no part of the page has to be moved sideways."""
    script = """
      const wide = [...page.querySelectorAll("main *")].filter((each) =>
        each.getBoundingClientRect().right > win.innerWidth + 0.5 && !each.closest("thead"));
      return { scrolls: page.documentElement.scrollWidth > win.innerWidth,
        wide: wide.map((each) => each.outerHTML.slice(0, 120)) };
    """

    assert found([PAGES[name]], script, tmp_path, PHONE) == {"scrolls": False, "wide": []}


def test_ranks_of_a_phone_are_cards(tmp_path: Path) -> None:
    """Rows stand below each other with the name of each figure before it; the bar has the width."""
    script = """
      const row = page.querySelector("tbody tr");
      return { row: win.getComputedStyle(row).display,
        bar: row.querySelector(".bar").getBoundingClientRect().width > 300,
        name: win.getComputedStyle(row.querySelector("td.number"), "::before").content };
    """

    assert found([LARGE], script, tmp_path, PHONE) == {
        "row": "block",
        "bar": True,
        "name": '"Own work "',
    }


def test_selection_and_scroll_survive_an_update(tmp_path: Path) -> None:
    """Text that is being copied stays selected, and nothing jumps, while the figures change."""
    later = json.loads(json.dumps(LARGE))
    job = later["jobs"][0]
    job["steps"] = 1_300
    for rank in job["ranks"]:
        rank |= {"heartbeat_age_seconds": 4.0, "stage": "forward"}
    later["gpus"][3]["temperature_celsius"] = 88
    script = """
      const code = page.querySelector(".facts code");
      const rows = [...page.querySelectorAll("tbody tr")];
      win.getSelection().selectAllChildren(code);
      win.scrollTo(0, 900);
      await until(() => page.body.textContent.includes("1300 steps"));
      return { selected: String(win.getSelection()), scrolled: win.scrollY,
        same: rows.every((row, place) => row === page.querySelectorAll("tbody tr")[place]),
        updated: page.body.textContent.includes("88 °C") };
    """

    assert found([LARGE, later], script, tmp_path) == {
        "selected": "py-spy dump --pid 20775",
        "scrolled": 900,
        "same": True,
        "updated": True,
    }


@pytest.mark.parametrize(
    ("answers", "script", "seen"),
    [
        # The same answer again changes no node at all, whatever its size.
        (
            [LARGE],
            """
            let changes = 0;
            const watch = new win.MutationObserver((records) => changes += records.length);
            const all = { subtree: true, childList: true, attributes: true, characterData: true };
            watch.observe(page.body, all);
            await pause(3000);
            return changes;
            """,
            0,
        ),
        # A name that the judge gives later is first from then on; no row is made anew.
        (
            [live(healthy(8)), live(straggler(count=8))],
            """
            const before = page.querySelectorAll("tbody tr")[2];
            await until(() => page.querySelector("tr.late"));
            return [...page.querySelectorAll("tbody tr")].indexOf(before);
            """,
            0,
        ),
        # What the exporter no longer knows is taken away; the hint for an empty node is back.
        (
            [live(hung()), live()],
            """
            await until(() => !page.querySelector("#jobs .job"));
            return page.getElementById("empty").hidden;
            """,
            False,
        ),
    ],
)
def test_only_what_differs_is_changed(
    answers: list[dict[str, Any]], script: str, seen: object, tmp_path: Path
) -> None:
    """Rows move, jobs go, and all else stays as it is."""
    assert found(answers, script, tmp_path) == seen


def test_answer_that_does_not_come_or_cannot_be_shown_is_admitted(tmp_path: Path) -> None:
    """The last state stays, greyed, below a sentence; another version's is no network's fault."""
    script = """
      const trouble = page.getElementById("trouble");
      await until(() => !trouble.hidden);
      const job = page.querySelector("#jobs .job");
      return { said: trouble.textContent, job: job !== null, stale: page.body.className };
    """
    broken = live(hung())
    del broken["jobs"][0]["verdict"]
    silent, other = (found([live(hung()), each], script, tmp_path) for each in (None, broken))

    assert "the exporter does not answer (HTTP status 500)" in silent["said"]
    assert "What is below is from" in silent["said"]
    assert (silent["job"], silent["stale"]) == (True, "stale")
    assert "it cannot show what the exporter says" in other["said"]
