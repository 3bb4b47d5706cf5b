"""The page in a browser: it contacts only its exporter, says first what is wrong, and stays put."""

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.causes.model import Cause, Guess
from rank_probe.judge.verdict import Late
from rank_probe.version import __version__
from tests.exporter.live.browser import AXE, FILES, READ, found, looks
from tests.exporter.live.stepping import EVEN, Node, served
from tests.exporter.snapshots import late, verdict

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

    own = "; ".join(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect"))
    assert policy == f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    assert not re.search(r"<style|<script(?![^>]* src=)| on\w+=| style=", INDEX)
    assert 'rel="icon" type="image/svg+xml" href="static/icon.svg"' in INDEX


CAUSE = Cause(
    "slow_device",
    "clocks",
    0.92,
    "its SM clock is 1.41 GHz, its peers' 1.95: too hot, 87 °C",
    "`nvidia-smi -q -i 2` on gpu-12",
    "sm_clock_hertz",
    1.41e9,
    1.95e9,
    (Guess("cpu", "run_queue", 0.2, "it waits for a CPU 9 % of the time, its peers 1 %"),),
)
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


def straggler(
    ranks: int = 4,
    job_id: str = "demo",
    cause: Cause | None = None,
    others: tuple[Late, ...] = (),
    **changes: Any,
) -> dict[str, Any]:
    """Return what the exporter serves of a job whose rank 2 is late, and these *others*."""
    node = Node(ranks, gpus=min(ranks, 16), job_id=job_id)
    node.cause = cause
    node.change(2, late_lines=[LINE], stage="data")
    node.said = verdict(late=(*others, late(**changes)), ranks={"all": ranks})
    node.run(10)
    return served(node.view)


def quiet(**node: Any) -> dict[str, Any]:
    """Return what it serves of a node on which nobody pushes."""
    silent = Node(0, **node)
    silent.pass_second()
    return served(silent.view)


def healthy(ranks: int = 4) -> dict[str, Any]:
    node = Node(ranks, gpus=ranks)
    node.said = EVEN | {"gpus_lost": {}}
    node.run(10)
    return served(node.view)


def hung() -> dict[str, Any]:
    """Return what it serves of a job of eight that rank 5 holds up."""
    node = Node(8, gpus=8)
    node.run(10)
    node.change(5, stage="data")
    node.wait(122)
    return served(node.view)


def troubled() -> dict[str, Any]:
    """Return what it serves of 64 ranks on sixteen GPUs, some of them with something wrong."""
    answer = straggler(64)
    answer["gpus"][2] |= {"throttle_reasons": ["sw_thermal_slowdown", "hw_thermal_slowdown"]}
    answer["gpus"][5] |= {"pcie_link_width": 8, "foreign_processes": 2}
    answer["gpus"][9] |= {"up": False}
    return answer


def judged_here() -> dict[str, Any]:
    answer = straggler()
    answer["jobs"][0]["verdict"]["judge"] = "node"
    return answer


PAGES: dict[str, Any] = {
    "straggler": straggler(),
    "cause": straggler(cause=CAUSE),
    "unknown": straggler(cause=UNKNOWN),
    "workers": straggler(cause=WORKERS, others=(late(rank=170),)),
    "judged here": judged_here(),
    "mild": straggler(kind="mild"),
    "unsynced": straggler(kind="unsynced"),
    "healthy": healthy(),
    "hung": hung(),
    "no probe": quiet(gpus=4, job_id="bert"),
    "hostile": straggler(job_id="<img src=x onerror=alert(1)>")
    | {"grafana_url": "javascript:alert(1)"},
    "empty": quiet(),
    "large": troubled(),
    "silent": None,
}


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a reader finds on each of these pages."""
    found = looks([[each] for each in PAGES.values()], READ, tmp_path_factory.mktemp("chromium"))
    return dict(zip(PAGES, found, strict=True))


def test_late_rank_is_what_the_page_says_first(read: dict[str, dict[str, Any]]) -> None:
    """The verdict, its cost, since when, what to do first, and the late rank before the others."""
    page = read["straggler"]

    assert page["title"] == "Straggler · gpu-12 · rankskew"
    assert page["rows"] == ["rank 2 · late 30 s", "rank 0", "rank 1", "rank 3"]
    assert page["marked"] == ["rank 2 · late 30 s"]
    assert page["blamed"] == [["data: 190 ms per step", "38%"]]
    assert page["codes"] == ["py-spy dump --pid 102"]
    assert {
        "runbooks/RankskewStraggler",
        "http://grafana:3000/d/rankskew-job?var-job_id=demo",
    } <= set(page["links"])


@pytest.mark.parametrize(
    ("name", "there", "absent"),
    [
        (
            "straggler",
            [
                *(SENTENCE, "1.75 of 4 GPUs lost", "30 s ago", "py-spy dump --pid 102 on gpu-12"),
                "data: 71 % in Corpus.__next__ (corpus.py:41)",
                "gpu-12 · PID 102 · GPU 2 · local rank 2",
                f"version {__version__}",
                "Steps take 1.44 times as long as without it.",
                "GPUs lost: 1.00 to late ranks;",
            ],
            ["Cause", "compared with the ranks of this node only"],
        ),
        # Why, how much of the delay that is, and what else it might be; once.
        (
            "cause",
            [
                "Slow GPU (clock): its SM clock is 1.41 GHz, its peers' 1.95: too hot, "
                "87 °C; 92 % of its delay.",
                "Or perhaps CPU (waits for a CPU): it waits for a CPU 9 % of the time, its peers "
                "1 %; 20 % of its delay.",
                "cause: slow GPU (clock): 1.41 GHz, its peers 1.95 GHz",
                "nvidia-smi -q -i 2 on gpu-12",
            ],
            ["Cause: "],
        ),
        # What was found is only a guess then, and has no share.
        (
            "unknown",
            ["Not known.\nOr perhaps CPU (waits for a CPU): ", "cause: not known"],
            [],
        ),
        # Code is what stands between backticks, and an action of a cause may have none.
        (
            "workers",
            [
                "Rank 2: loader (workers at their limit): 2 of its loader's workers",
                "(running Corpus.__getitem__), 0 of its peers'; 81 % of its delay.",
                "print how long its samples are",
                "cause: loader (workers at their limit): 2, its peers 0",
            ],
            ["`"],
        ),
        # A node that compares its own ranks does not see those of the others.
        ("judged here", ["compared with the ranks of this node only"], []),
        ("mild", ["rank 2 · a little late"], ["Since"]),
        ("unsynced", ["rank 2 · stands out"], ["Since"]),
        ("healthy", ["Healthy"], ["Cost", "Since", "Do first"]),
        ("hung", ["8 of 8 GPUs lost", "2 min ago", "data for 2 min"], []),
        ("no probe", ["Job bert", "torchrun ... -m rank_probe train.py", "PID 101"], []),
        # Markup in a job id is displayed, not run; what is no web address becomes no link.
        ("hostile", ["Job <img src=x onerror=alert(1)>", SENTENCE], ["Dashboard in Grafana"]),
        (
            "empty",
            ["No rank has reported yet", "-m rank_probe train.py", "no GPU visible"],
            ["Job "],
        ),
        (
            "silent",
            ["This page is out of date: the exporter does not answer (HTTP status 500)."],
            ["Job "],
        ),
    ],
)
def test_page_shows_what_is_known(
    read: dict[str, dict[str, Any]], name: str, there: list[str], absent: list[str]
) -> None:
    """Of each kind of job, of an empty node, and of an exporter that does not answer."""
    text = read[name]["text"]

    assert [each for each in there if each not in text] == []
    assert [each for each in absent if each in text] == []


def test_code_and_links_are_what_they_look_like(read: dict[str, dict[str, Any]]) -> None:
    assert read["workers"]["codes"] == ["Corpus.__getitem__"]
    assert read["cause"]["codes"] == ["nvidia-smi -q -i 2"]
    assert read["cause"]["text"].count("too hot, 87 °C") == 1
    assert not [each for each in read["hostile"]["links"] if each and "javascript" in each]
    assert read["hung"]["rows"][0] == read["hung"]["marked"][0] == "rank 5"
    for name in ("mild", "unsynced", "healthy", "no probe"):
        assert read[name]["marked"] == []  # What raises no alert is not drawn as if it did.


AXE_RUN = """
  const tool = page.createElement("script");
  tool.src = "/axe.js";
  page.head.append(tool);
  await until(() => win.axe);
  const result = await win.axe.run(page, { resultTypes: ["violations"] });
  return result.violations.map(({ id, nodes }) => id + nodes[0].html + nodes[0].failureSummary);
"""
NOTHING: dict[str, list[str]] = {name: [] for name in PAGES}


@pytest.mark.parametrize("flags", [(), ("--blink-settings=preferredColorScheme=0",)])
def test_page_can_be_read_by_all(flags: tuple[str, ...], tmp_path: Path) -> None:
    """axe finds nothing: contrast, also in the dark, names of rows and pictures, headings."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed; scripts/setup.sh test does that where npm works")
    found = looks([[each] for each in PAGES.values()], AXE_RUN, tmp_path, 1_200, *flags)

    assert dict(zip(PAGES, found, strict=True)) == NOTHING


def test_nothing_is_wider_than_a_phone(tmp_path: Path) -> None:
    """No part of the page has to be moved sideways; each rank is a card.

    Its rows stand below each other with the name of each figure before it; the bar has the width.
    """
    script = """
      const wide = [...page.querySelectorAll("main *")].filter((each) =>
        each.getBoundingClientRect().right > win.innerWidth + 0.5 && !each.closest("thead"));
      const row = page.querySelector("tbody tr");
      const name = row && win.getComputedStyle(row.querySelector("td.number"), "::before").content;
      return { scrolls: page.documentElement.scrollWidth > win.innerWidth,
        wide: wide.map((each) => each.outerHTML.slice(0, 120)),
        card: row && [win.getComputedStyle(row).display, name],
        bar: row && row.querySelector(".bar").getBoundingClientRect().width > 300 };
    """
    found = looks([[each] for each in PAGES.values()], script, tmp_path, 390)

    for name, each in zip(PAGES, found, strict=True):
        assert (each["scrolls"], each["wide"]) == (False, []), name
    large = dict(zip(PAGES, found, strict=True))["large"]
    assert (large["card"], large["bar"]) == (["block", '"Own work "'], True)


def test_selection_and_scroll_survive_an_update(tmp_path: Path) -> None:
    """Text that is being copied stays selected, and nothing jumps, while the figures change."""
    later = copy.deepcopy(PAGES["large"])
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

    assert found([PAGES["large"], later], script, tmp_path) == {
        "selected": "py-spy dump --pid 102",
        "scrolled": 900,
        "same": True,
        "updated": True,
    }


@pytest.mark.parametrize(
    ("answers", "script", "seen"),
    [
        # The same answer again changes no node at all, whatever its size.
        (
            [PAGES["large"]],
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
            [healthy(8), straggler(8)],
            """
            const before = page.querySelectorAll("tbody tr")[2];
            await until(() => page.querySelector("tr.late"));
            return [...page.querySelectorAll("tbody tr")].indexOf(before);
            """,
            0,
        ),
        # What the exporter no longer knows is taken away; the hint for an empty node is back.
        (
            [PAGES["hung"], PAGES["empty"]],
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
    broken = copy.deepcopy(PAGES["hung"])
    del broken["jobs"][0]["verdict"]
    pages = [[PAGES["hung"], each] for each in (None, broken)]
    silent, other = looks(pages, script, tmp_path)

    assert "the exporter does not answer (HTTP status 500)" in silent["said"]
    assert "What is below is from" in silent["said"]
    assert (silent["job"], silent["stale"]) == (True, "stale")
    assert "it cannot show what the exporter says" in other["said"]
