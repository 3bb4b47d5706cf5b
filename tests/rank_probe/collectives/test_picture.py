"""The heat map shows each pair once each way, and can be read by everybody."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from rank_probe.collectives.colours import STOPS, Scale, colour, text_on
from rank_probe.collectives.picture import CELL_WITH_VALUE, draw
from rank_probe.collectives.verdict import Link
from tests.rank_probe.collectives.worlds import hosts, pair_times, result

SVG = "{http://www.w3.org/2000/svg}"


def drawn(ranks: int, nodes: int = 1, slow: bool = True) -> ET.Element:
    where = hosts(nodes, ranks // nodes)
    return ET.fromstring(draw(result(pair_times(where, {(1, 2): 4.0} if slow else None), where)))


def texts(picture: ET.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}text")]


def titles(picture: ET.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}title")]


def test_picture_says_what_it_shows() -> None:
    """A screen reader gets a title and the verdict."""
    picture = drawn(4)

    assert picture.get("role") == "img"
    assert titles(picture)[0] == "Bandwidth and latency between 4 ranks, gloo"
    assert "the link between ranks 1 and 2" in picture.findtext(f"{SVG}desc", "")
    assert texts(picture)[0] == "Slow: the link between ranks 1 and 2 (n0)"
    assert texts(drawn(4, slow=False))[0] == "No link stands out"


def test_each_pair_is_there_each_way() -> None:
    """In both panels, with its value to read and to hover over."""
    picture = drawn(4)

    assert len(titles(picture)) == 1 + 2 * 4 * 3
    assert "rank 1 (n0) to rank 2 (n0): 2.50 GB/s" in titles(picture)
    assert "rank 2 (n0) to rank 1 (n0): 10.0 GB/s" in titles(picture)
    assert texts(picture).count("2.50") == 1


@pytest.mark.parametrize(("ranks", "values", "hovers"), [(16, 480, 480), (20, 0, 760), (66, 0, 0)])
def test_large_world_has_fewer_words(ranks: int, values: int, hovers: int) -> None:
    """Cells have values up to 16 ranks, and names up to 64."""
    picture = drawn(ranks, slow=False)

    legend = 2 * 3 + 2
    assert len([text for text in texts(picture) if text in ("20.0", "10.0")]) == values
    assert len(titles(picture)) == 1 + hovers
    assert len(texts(picture)) >= legend


def frames(slower: dict[Link, float], latency: dict[Link, float]) -> list[tuple[float, float]]:
    """Return width and height, in cells, of each frame in a world of four."""
    where = hosts(1, 4)
    picture = ET.fromstring(draw(result(pair_times(where, slower, latency), where)))
    found = [rect for rect in picture.iter(f"{SVG}rect") if rect.get("class") == "named"]
    sizes = [(float(rect.get("width", 0)), float(rect.get("height", 0))) for rect in found]
    return [((wide + 1) / CELL_WITH_VALUE, (high + 1) / CELL_WITH_VALUE) for wide, high in sizes]


def test_what_is_slow_has_a_frame() -> None:
    """A direction of a link, both of its latency, a rank's row, its column, or nothing."""
    assert frames({(1, 2): 4.0}, {}) == [(1, 1)]
    assert frames({}, {(1, 2): 4.0}) == [(1, 1), (1, 1)]
    assert frames({(2, other): 4.0 for other in (0, 1, 3)}, {}) == [(4, 1)]
    assert frames({(other, 2): 4.0 for other in (0, 1, 3)}, {}) == [(1, 4)]
    assert frames({}, {(0, 2): 4.0, (1, 2): 4.0, (2, 3): 4.0}) == [(4, 1), (1, 4)]
    assert frames({}, {}) == []


def test_nodes_are_divided_by_lines() -> None:
    """One line across and one down where a node ends, in both panels."""
    assert len(list(drawn(6, nodes=3, slow=False).iter(f"{SVG}line"))) == 8
    assert not list(drawn(4, nodes=1).iter(f"{SVG}line"))


def test_noise_does_not_fill_the_scale() -> None:
    """A tenth around the median stays in the middle of the colours."""
    scale = Scale.over([0.9, 1.0, 1.1], larger_is_better=True)

    assert 0.4 < scale.share(0.9) < scale.share(1.1) < 0.6
    assert (scale.at(0.0), scale.at(1.0)) == (0.5, 2.0)
    assert Scale.over([1.0, 100.0, 1.0], larger_is_better=False).share(100.0) == 0.0


def test_every_colour_can_be_read_on() -> None:
    """The contrast of text on its cell is at least 4.5, as WCAG asks for."""

    def luminance(rgb: tuple[int, ...]) -> float:
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in (value / 255 for value in rgb)
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for step in range(101):
        cell = colour(step / 100)
        text = tuple(bytes.fromhex(text_on(cell)[1:]))
        dark, light = sorted((luminance(cell), luminance(text)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5
    assert (colour(0.0), colour(1.0)) == (STOPS[0], STOPS[-1])
    assert all(luminance(colour(a)) < luminance(colour(b)) for a, b in pairwise((0, 0.25, 0.5, 1)))
