"""What is private in torch is named in one room, and each name has its row in one table."""

import ast
import re
from collections.abc import Iterator

from rank_probe.torch_hooks.private import TABLE
from tests.repo.imports import modules

HOOKS, ROWS = "rank_probe.torch_hooks.", "rank_probe.torch_hooks.private"
PRIVATE_OF_TORCH = re.compile(r"\btorch\.(\w+\.)*_(?!_)|\b_C\b")
PRIVATE = re.compile(r"_[a-zA-Z]\w*")
OF_PYTHON = {"_getframe"}
OF_TRANSFORMERS = {"_evaluate", "_save_checkpoint"}
# Packages of torch with an underscore: what is in them has the rows.
PACKAGES = {"_C", "_dynamo", "_composable", "_fully_shard", "_fsdp_state", "_distributed_c10d"}
PACKAGES |= {"_c10d_functional"}


def private_names(tree: ast.AST) -> Iterator[str]:
    """Yield what *tree* names with an underscore on other objects than its own, also in text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "").split(".")
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"[\w.]+", str(node.value)):
            yield from str(node.value).split(".")


def names_of_hooks() -> set[str]:
    """Return every word of that kind in the room, underscore or not."""
    return {
        name
        for module, path in modules("rank_probe").items()
        if module.startswith(HOOKS) and module != ROWS
        for name in private_names(ast.parse(path.read_text()))
    }


def test_only_the_hooks_name_what_is_private_in_torch() -> None:
    """So a new torch is tried and mended in one room."""
    naming = {
        module
        for module, path in modules("rank_probe", "exporter", "rankskew").items()
        if not module.startswith(HOOKS) and PRIVATE_OF_TORCH.search(path.read_text())
    }

    assert naming == set()


def test_each_private_name_has_a_row() -> None:
    """So the page tells what a torch without it costs."""
    told = {word for row in TABLE for word in re.split(r"[.:]", row.name)}
    private = {name for name in names_of_hooks() if PRIVATE.fullmatch(name)}

    assert private - told - OF_PYTHON - OF_TRANSFORMERS - PACKAGES == set()


def test_each_row_is_used() -> None:
    """A name that the probe no longer touches is no risk, and leaves the table."""
    used = names_of_hooks()

    assert [
        row.name for row in TABLE if row.name.rpartition(".")[2].rpartition(":")[2] not in used
    ] == []
