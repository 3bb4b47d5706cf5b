"""On which releases of torch and Python the probe was run, and what differs there."""

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.report import Row
from benchmarks.torch_versions import JOIN, TESTS
from generators.markdown import table

Ways = Iterable[str]


def versions(result: Row) -> str:
    """Return a row for each release: ways right, the join, the tests, and each miss by its name."""
    releases: dict[tuple[str, str], list[Row]] = {}
    for row in result["rows"]:  # CPU or CUDA wheels of one release are one.
        key = row["torch"].partition("+")[0], row["python"]
        releases.setdefault(key, []).append(row)
    every_way = dict.fromkeys(
        row["what"] for row in result["rows"] if row["what"] not in (JOIN, TESTS)
    )
    cells = [_cells(*release, found, every_way) for release, found in releases.items()]
    header = ("torch", "Python", "ways right", "the join speaks", "unit tests", "what differs")
    cpus = result["machine"]["cpus"]
    return f"On {cpus} CPUs, over gloo.\n\n{table(header, cells)}"


def _cells(torch: str, python: str, found: Sequence[Row], every_way: Ways) -> tuple[str, ...]:
    named = {row["what"]: row for row in found}
    ways = [row for row in found if row["what"] not in (JOIN, TESTS)]
    right, of = sum(row["right"] for row in ways), sum(row["of"] for row in ways)
    join, tests = named.get(JOIN), named.get(TESTS)
    return (
        torch,
        python,
        _share(right, of) if ways else "not run",
        "not run" if join is None else "yes" if join["right"] == join["of"] else "**no**",
        "not run" if tests is None else _share(tests["right"], tests["of"]),
        "; ".join((*_differs(found), *_left_out(ways, every_way))),
    )


def _share(right: int, of: int) -> str:
    return f"{right} of {of}" if right == of else f"**{right}** of {of}"


def _differs(found: Sequence[Row]) -> Iterator[str]:
    for row in found:
        if row["differs"]:
            yield f"{row['what']}{_with(row)}: {row['differs']}"


def _left_out(ways: Sequence[Row], every_way: Ways) -> Iterator[str]:
    """Name the ways that another release was run in and this one was not."""
    run = {row["what"] for row in ways}
    left_out = [what for what in every_way if what not in run]
    if left_out:
        yield f"not run: {', '.join(left_out)}"


def _with(row: Row) -> str:
    return f" ({row['with']})" if row["with"] else ""
