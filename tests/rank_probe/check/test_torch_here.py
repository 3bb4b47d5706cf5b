"""What `rank-probe check` says of the torch that is installed."""

from importlib import metadata

import pytest

from rank_probe.check.torch_here import torch_here, torch_of
from rank_probe.torch_hooks.private import NEWEST


def test_old_torch_is_told_what_is_not_seen() -> None:
    """A count, and a sentence for each loss; the names are in the document for scripts."""
    old = torch_of("2.4.1+cu121")

    assert old.lines() == (
        "2.4.1+cu121 lacks 3 of the names that the probe uses in it",
        "without them: What a loop reads between DDP's forward and backward is `forward`.",
        "without them: There are no zero-bubble schedules, so none is timed.",
    )
    assert old.lacking[0] == "torch._C:_FunctionBase._input_metadata"


def test_tried_torch_lacks_nothing() -> None:
    """One line, with how much depends on what torch does not promise."""
    new = torch_of(f"{NEWEST}.0")

    assert new.lines() == (f"{NEWEST}.0 has the {new.names} names that the probe uses in it",)
    assert new.names > 20


@pytest.mark.parametrize(("version", "said"), [("3.0.0", "newer than"), ("1.13.1", "older than")])
def test_torch_that_was_never_tried_is_named_so(version: str, said: str) -> None:
    """The table says nothing of it."""
    assert said in torch_of(version).lines()[0]


def test_no_torch_is_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prolog may run in another Python than the job."""

    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)

    assert torch_here() is None
