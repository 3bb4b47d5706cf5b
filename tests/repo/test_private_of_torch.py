"""What is private in torch is named in one room."""

import re

from tests.repo.imports import modules

HOOKS = "rank_probe.torch_hooks."
PRIVATE_OF_TORCH = re.compile(r"\btorch\.(\w+\.)*_(?!_)|\b_C\b")


def test_only_the_hooks_name_what_is_private_in_torch() -> None:
    """So a new torch is tried and mended in one room."""
    naming = {
        module
        for module, path in modules("rank_probe", "exporter", "rankskew").items()
        if not module.startswith(HOOKS) and PRIVATE_OF_TORCH.search(path.read_text())
    }

    assert naming == set()
