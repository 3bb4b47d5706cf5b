"""The tables of what each number of ranks costs, and each rule."""

from collections.abc import Sequence

from benchmarks.report import Row
from benchmarks.scale.run import BEFORE, MEMORY_LIMIT_MIB, NOW, RULES_LIMIT, SCRAPES_LIMIT, TREES
from generators.markdown import table

DEAREST = 5
TREE_NAMES = {BEFORE: "the release before", NOW: "this one"}


def scale(result: Row) -> str:
    """Return a row for each size and tree."""
    found = result["rows"]
    cells = [
        (
            f"{row['ranks']:,}",
            _tree(row),
            f"{row['rules CPU s of 15']:.2f} s (max {row['rules CPU s of 15, max']:.2f})",
            f"{row['CPU s of 15 without rules']:.2f} s",
            str(row["missed"]),
            f"{row['head series'] / 1e3:,.0f}k",
            f"{row['RSS MiB'] / 1024:.1f} GiB",
            f"{row['cores of the load']:.2f} and {row['cores of others']:.2f}",
            "yes" if row["straggler named"] and not row["others accused"] else "**no**",
        )
        for row in found
    ]
    header = (
        "ranks",
        "release",
        "CPU of the rules per 15 s",
        "without rules",
        "missed evaluations",
        "series",
        "memory",
        "cores of the nodes, of others",
        "only the late rank named",
    )
    machine = result["machine"]
    return f"Prometheus {found[0]['Prometheus']}, {machine['cpus']} CPUs.\n\n{table(header, cells)}"


def outcome(result: Row) -> str:
    """Return the cost of the rules for each size of one job, and whether it is within the goals."""
    found = [row for row in result["rows"] if _is_plain(row) and row["tree"] == NOW]
    sentences = []
    for row in found:
        missed = row["missed"]
        sentences.append(
            f"For {row['ranks']:,} ranks the rules take {row['rules CPU s of 15']:.1f} CPU seconds "
            f"of 15 ({_verdict(row['rules CPU s of 15'], RULES_LIMIT)}), scraping "
            f"{row['CPU s of 15 without rules']:.1f} "
            f"({_verdict(row['CPU s of 15 without rules'], SCRAPES_LIMIT)}), and Prometheus "
            f"{row['RSS MiB'] / 1024:.1f} GiB "
            f"({_verdict(row['RSS MiB'] / 1024, MEMORY_LIMIT_MIB / 1024)}); "
            f"{missed or 'no'} evaluation{'s were' if missed > 1 else ' was'} missed."
        )
    return "\n".join(sentences)


def _verdict(value: float, limit: float) -> str:
    within = "within" if round(value, 1) <= limit else "**over**"
    return f"{within} the goal of {limit:g}"


def rules(result: Row) -> str:
    """Return the most expensive rules at the largest number of ranks."""
    found = result["rows"]
    most = max(row["ranks"] for row in found)
    cells = []
    for tree in TREES:
        mine = [row for row in found if (row["ranks"], row["tree"]) == (most, tree)]
        cells += [_rule(row) for row in _dearest(mine)]
    return table(("ranks", "release", "rule", "wall time per 15 s, in seconds"), cells)


def _dearest(found: Sequence[Row]) -> Sequence[Row]:
    plain = [row for row in found if _is_plain(row)]
    return sorted(plain, key=lambda row: -row["s in 15 s"])[:DEAREST]


def _is_plain(row: Row) -> bool:
    return bool(row["jobs"] == 1)


def _rule(row: Row) -> tuple[str, ...]:
    # Its position in the group comes first.
    name = row["rule"].partition(" ")[2]
    return f"{row['ranks']:,}", TREE_NAMES[row["tree"]], f"`{name}`", f"{row['s in 15 s']:.2f}"


def _tree(row: Row) -> str:
    tree = TREE_NAMES[row["tree"]]
    return tree if row["jobs"] == 1 else f"{tree}, {row['jobs']} jobs"
