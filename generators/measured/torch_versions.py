"""On which releases of torch and Python the probe was run, and what differs there."""

from collections.abc import Iterator, Sequence

from benchmarks.torch_versions import JOIN, TESTS
from generators.markdown import table
from generators.measured.results import Row, result, rows


def versions() -> str:
    """Return a row for each release: ways right, the join, the tests, and each miss by its name."""
    releases: dict[tuple[str, str], list[Row]] = {}
    for row in rows("torch_versions"):  # CPU or CUDA wheels of one release are one.
        key = row["torch"].partition("+")[0], row["python"]
        releases.setdefault(key, []).append(row)
    cells = [_cells(*release, found) for release, found in releases.items()]
    header = ("torch", "Python", "ways right", "the join speaks", "unit tests", "what differs")
    cpus = result("torch_versions")["machine"]["cpus"]
    return f"On {cpus} CPUs, over gloo.\n\n{table(header, cells)}"


def _cells(torch: str, python: str, found: Sequence[Row]) -> tuple[str, ...]:
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
        "; ".join((*_differs(found), *_left_out(ways))),
    )


def _share(right: int, of: int) -> str:
    return f"{right} of {of}" if right == of else f"**{right}** of {of}"


def _differs(found: Sequence[Row]) -> Iterator[str]:
    for row in found:
        if row["differs"]:
            yield f"{row['what']}{_with(row)}: {row['differs']}"


def _left_out(ways: Sequence[Row]) -> Iterator[str]:
    """Name the ways that another release was run in and this one was not."""
    run = {row["what"] for row in ways}
    everywhere = dict.fromkeys(row["what"] for row in rows("torch_versions"))
    left_out = [what for what in everywhere if what not in (JOIN, TESTS) and what not in run]
    if left_out:
        yield f"not run: {', '.join(left_out)}"


def _with(row: Row) -> str:
    return f" ({row['with']})" if row["with"] else ""
