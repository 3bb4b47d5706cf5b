"""The live page contacts only its exporter, shows text as text, and says first what is wrong."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.causes.model import Cause
from rank_probe.wire.stages import STAGES
from tests.exporter.live.browser import FILES, shown
from tests.exporter.live.node_data import CAUSE, SENTENCE, healthy, hung, live, no_probe, straggler

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


def test_every_stage_has_a_colour() -> None:
    """In bars; the wait has stripes of its own."""
    styles = TEXTS["vocabulary.css"] + TEXTS["live.css"]

    for stage in STAGES:
        assert re.search(rf"\.{stage} {{ background: ", styles)
        assert re.search(rf"path\.{stage} {{ fill: ", styles)


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
