"""Tests of the time that torch.compile has taken, on a stand-in for Dynamo and on the real one."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from rank_probe.torch_hooks.dynamo import CompileTime


@pytest.fixture(autouse=True)
def no_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests compiled is nothing to these."""
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)


def dynamo(monkeypatch: pytest.MonkeyPatch, **nanoseconds: int) -> None:
    """Stand in for a Dynamo that has compiled for so long."""
    module = types.ModuleType("torch._dynamo.utils")
    module.cumulative_time_spent_ns = nanoseconds  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", module)


def test_reading_compile_time_imports_nothing() -> None:
    """Without Dynamo there is no reading, and it stays unimported."""
    assert CompileTime().seconds() is None
    assert "torch._dynamo.utils" not in sys.modules


def test_compile_time_survives_a_reset_of_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds before torch.compiler.reset() are kept."""
    compiled = CompileTime()
    dynamo(monkeypatch, entire_frame_compile=3_000_000_000, entire_backward_compile=1_000_000_000)
    assert compiled.seconds() == 4.0
    dynamo(monkeypatch)
    assert compiled.seconds() == 4.0
    dynamo(monkeypatch, entire_frame_compile=2_000_000_000)

    assert compiled.seconds() == compiled.seconds() == 6.0


def test_older_torch_keeps_it_by_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds; what a frame's compilers take is part of its whole."""
    frames = {"0": {"entire_frame_compile": 1.5, "code_gen": 0.7}, "1": {"code_gen": 0.2}}
    older = types.SimpleNamespace(frame_phase_timing=frames)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", older)

    assert CompileTime().seconds() == 1.5


def test_real_compilation_is_seen() -> None:
    """Dynamo of the installed torch still keeps its sum where it is read."""
    code = (
        "import torch\n"
        "from rank_probe.torch_hooks.dynamo import CompileTime\n"
        "compiled = CompileTime()\n"
        "torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1))\n"
        "print(compiled.seconds())\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )

    assert 0 < float(child.stdout) < 60
