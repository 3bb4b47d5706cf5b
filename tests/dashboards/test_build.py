"""The committed dashboards are what the code builds."""

import json

from dashboards.build import stale, texts


def test_committed_json_is_fresh() -> None:
    """Code and JSON agree; nothing is missing, outdated or left over."""
    assert stale() == [], "run python -m dashboards.build"


def test_build_is_stable() -> None:
    """Building twice gives the same bytes, with sorted keys, so a diff shows what changed."""
    built = texts()

    assert built == texts()
    for text in built.values():
        assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
