"""The live page contacts only its exporter, shows text as text, and says first what is wrong."""

import re
from pathlib import Path

import pytest

from rank_probe.wire.stages import STAGES
from tests.exporter.live.browser import FILES, shown
from tests.exporter.live.node_data import HOT, SENTENCE, healthy, hung, live, no_probe, straggler

TEXTS = {name: content.decode() for name, content in FILES.items()}
INDEX = TEXTS["index.html"]
SCRIPTS = "".join(text for name, text in TEXTS.items() if name.endswith(".js"))


def test_page_loads_nothing_from_elsewhere() -> None:
    """No external address is in its files: it works on a cluster without internet."""
    everything = "".join(TEXTS.values()).replace("http://www.w3.org/2000/svg", "")

    assert re.findall(r"(?:https?:)?//[\w-]+\.\w+", everything) == []


def test_addresses_are_relative() -> None:
    """The page works below any prefix, such as a proxy's."""
    assert re.findall(r'(?:href|src)="/', INDEX) == []
    assert re.findall(r'fetch\("/|from "/', SCRIPTS) == []


def test_page_never_writes_markup() -> None:
    """What training processes send is only ever text."""
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
    """In bars and in strips; the wait has stripes of its own."""
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
    assert "<code>py-spy dump --pid 20775</code><span> on gpu-12</span>" in dom
    assert 'href="runbooks/RankskewStraggler?job=demo&amp;rank=2"' in dom
    assert 'href="http://grafana:3000/d/rankskew-job?var-job_id=demo"' in dom
    rows = re.findall(r'<th scope="row">(.*?)</th>', dom)
    assert rows == ["rank 2 · late 35 s", "rank 0", "rank 1", "rank 3"]
    assert dom.count("culprit") == 1
    assert 'class="data culprit" title="data: 190 ms per step" style="width: 38%;"' in dom
    assert "data: 71 % in Corpus.__next__ (corpus.py:41)" in dom
    assert "gpu-12 · PID 20775 · GPU 2 · local rank 2" in dom
    assert "version 9.8.7" in dom
    assert "<title>Straggler · gpu-12 · rankskew</title>" in dom


def test_cause_is_told_with_its_share_and_figures(tmp_path: Path) -> None:
    """Why the rank is late, how much of its delay that is, and what else it might be; once."""
    dom = shown(live(straggler(cause=HOT)), tmp_path)

    assert (
        '<dt>Cause</dt><dd><ul class="causes">'
        "<li>Rank 2: slow GPU (clock): its SM clock is 1.41 GHz, its peers' 1.95: too hot, 87 °C; "
        "92 % of its delay.</li>"
        "<li>Or perhaps CPU (waits for a CPU): it waits for a CPU 9 % of the time, its peers 1 %; "
        "20 % of its delay.</li></ul>" in dom
    )
    assert "<div>cause: slow GPU (clock): 1.41 GHz, its peers 1.95 GHz</div>" in dom
    assert dom.count("too hot, 87 °C") == 1


def test_cause_that_is_not_known_has_no_share(tmp_path: Path) -> None:
    """What was found is only a guess then."""
    cause = HOT | {"cause": "unknown", "detail": "", "share": 0.3, "sentence": "", "value": None}
    dom = shown(live(straggler(cause=cause)), tmp_path)

    assert "<li>Rank 2: not known.</li><li>Or perhaps CPU (waits for a CPU): " in dom
    assert "<div>cause: not known</div>" in dom


def test_job_without_a_known_cause_has_no_row_for_it(tmp_path: Path) -> None:
    """A rank of another node may have one that only its own exporter knows."""
    dom = shown(live(straggler()), tmp_path)

    assert '<dt hidden="">Cause</dt>' in dom


@pytest.mark.parametrize(("judge", "words"), [("node", True), ("join", False)])
def test_page_says_whose_verdict_it_is(tmp_path: Path, judge: str, words: bool) -> None:
    """A node that compares its own ranks does not see those of the others."""
    job = straggler()
    job["verdict"]["judge"] = judge
    dom = shown(live(job), tmp_path)

    assert ("compared with the ranks of this node only" in dom) == words


def test_rank_that_costs_too_little_is_no_alarm(tmp_path: Path) -> None:
    """What raises no alert is not drawn as if it did, however steadily it is late."""
    job = straggler()
    for late in job["verdict"]["late"]:
        late["is_told"] = False
    dom = shown(live(job), tmp_path)

    assert '<tr class=""><th scope="row">rank 2 · a little late</th>' in dom


def test_details_stand_below_the_verdict(tmp_path: Path) -> None:
    """Further findings of the judge are one line each, as text."""
    dom = shown(live(straggler()), tmp_path)

    assert (
        "<li>Steps take 1.39 times as long as without it.</li>"
        "<li>GPUs lost: 0.84 to &lt;late&gt; ranks.</li>" in dom
    )


@pytest.mark.parametrize(("kind", "mark"), [("mild", "a little late"), ("unsynced", "stands out")])
def test_rank_that_wakes_nobody_is_marked_without_alarm(
    tmp_path: Path, kind: str, mark: str
) -> None:
    """A rank that is late a little is pointed at, and not in the colour of an alarm."""
    dom = shown(live(straggler(kind=kind)), tmp_path)

    assert f'<tr class=""><th scope="row">rank 2 · {mark}</th>' in dom
    assert dom.count("culprit") == 1
    assert '<dt hidden="">Since</dt>' in dom


def test_healthy_job_is_quiet(tmp_path: Path) -> None:
    """Nothing to do, no cost, nobody marked."""
    dom = shown(live(healthy(), gpus=4), tmp_path)

    assert '<section class="job healthy green">' in dom
    assert '<span class="badge">Healthy</span>' in dom
    assert 'class="late"' not in dom
    assert all(f'<dt hidden="">{name}</dt>' in dom for name in ("Cost", "Since", "Do first"))


def test_hung_job_costs_all_its_gpus(tmp_path: Path) -> None:
    """While nobody steps everything is lost, and the rank that holds it up comes first."""
    dom = shown(live(hung()), tmp_path)

    assert "8 of 8 GPUs lost" in dom
    assert "<dt>Since</dt><dd>96 s ago</dd>" in dom
    assert re.findall(r'<th scope="row">(.*?)</th>', dom)[0] == "rank 5"
    assert "checkpoint for 95 s" in dom


def test_job_without_a_probe_is_listed_with_a_hint(tmp_path: Path) -> None:
    """It has no figures, and the page says how to start the probe."""
    dom = shown(live(no_probe(), gpus=4), tmp_path)

    assert "Job bert" in dom
    assert "torchrun ... -m rank_probe train.py" in dom
    assert "PID 20773" in dom


def test_job_id_is_shown_as_text(tmp_path: Path) -> None:
    """Markup in a job id is displayed, not run."""
    dom = shown(live(straggler("<img src=x onerror=alert(1)>")), tmp_path)

    assert "Job &lt;img src=x onerror=alert(1)&gt;" in dom
    assert "<img" not in dom


def test_grafana_address_is_no_script(tmp_path: Path) -> None:
    """What is not a web address becomes no link, whoever put it there."""
    dom = shown(live(straggler(), grafana_url="javascript:alert(1)"), tmp_path)

    assert "javascript:" not in dom


def test_empty_node_says_how_to_begin(tmp_path: Path) -> None:
    """Without any rank the page gives the command that starts one."""
    dom = shown(live(), tmp_path)

    assert '<section id="empty" class="job">' in dom
    assert "-m rank_probe train.py" in dom
    assert "no GPU visible" in dom


def test_silent_exporter_is_admitted(tmp_path: Path) -> None:
    """When the exporter does not answer, the page says so instead of showing nothing."""
    dom = shown(None, tmp_path)

    assert "This page is out of date: the exporter does not answer (HTTP status 500)." in dom
