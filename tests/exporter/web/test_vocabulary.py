"""The live page has its words and colours from the vocabulary."""

import json
import re

from exporter.vocabulary.words import CAUSES, COLOURS, STAGES, STATES
from exporter.web.static import page_files
from exporter.web.vocabulary import script, style


def constant(name: str) -> object:
    """Return what the script gives a constant."""
    (said,) = re.findall(rf"^export const {name} = (.*);$", script(), re.MULTILINE)
    return json.loads(said)


def test_script_has_the_words_in_their_order() -> None:
    """The page's title names the most urgent state, and its legend is in step order."""
    states = constant("STATES")

    assert isinstance(states, dict)
    assert list(states) == list(STATES)
    assert states["slow_node"] == {"word": "Slow node", "colour": "red"}
    assert constant("STAGES") == list(STAGES)
    assert constant("MARKS") == {"mild": "a little late", "unsynced": "stands out"}
    causes = constant("CAUSES")
    assert isinstance(causes, dict)
    assert list(causes) == list(CAUSES)
    assert causes["slow_device"]["details"]["clocks"] == "clock"


def test_style_has_the_colour_of_each_stage() -> None:
    """The wait is the page's own: pale in stripes, and dark on a dark page."""
    colours = dict(re.findall(r"--(\w+): (#\w{6});", style()))

    assert colours == {name: stage.colour for name, stage in STAGES.items() if name != "sync"}


def test_page_has_a_shade_of_every_colour() -> None:
    """A state's colour is a class of its job's card; what has no rule of its own is quiet."""
    live = page_files()["live.css"].decode()
    shades = {name for name in COLOURS if f".job.{name} {{ --state: var(--{name}); }}" in live}

    assert set(COLOURS) - shades == {"blue", "grey"}
    assert "--grey: " in page_files()["page.css"].decode()
    assert all(f".{name} .verdict" in live for name in COLOURS)


def test_page_loads_both() -> None:
    """They are served beside the other files."""
    files = page_files()

    assert files["vocabulary.js"] == script().encode()
    assert b'href="static/vocabulary.css"' in files["index.html"]
    assert b'from "./vocabulary.js"' in files["jobs.js"]
    assert files["vocabulary.css"] == style().encode()
