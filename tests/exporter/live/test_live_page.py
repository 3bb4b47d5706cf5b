"""The page in a browser, over time and at every width: it stays put, and fits, for all readers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.exporter.live.browser import AXE, found
from tests.exporter.live.node_data import (
    healthy,
    hung,
    live,
    no_probe,
    straggler,
    troubled_gpus,
)

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
