"""Changes the code in one place at a time, and counts how often a test notices."""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from devstack.parts import ROOT
from tests.nightly.figures import full_or_short

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(0)]

OF_EACH: Final = int(full_or_short(17, 2))
# The share that must be caught; a sample of 38 gave 92 %. Some mutants change no behaviour.
SHARE: Final = 0.8
QUICK: Final = "not (jobs or e2e or nightly or deploy)"
PYTEST: Final = (sys.executable, "-m", "pytest", "-xq", "-n0", "--timeout=60", "-m", QUICK)
LONGEST: Final = 240  # seconds
# By folder of code: where below tests/ its own tests are.
ROOMS: Final = {
    "rank_probe/judge": "rank_probe/judge",
    "rank_probe/join": "rank_probe/join",
    "rank_probe/measure": "rank_probe/measure",
    "rank_probe/lines": "rank_probe/test_[ls]*.py",
    "rank_probe/process": "rank_probe/test_[fgp]*.py",
    "rank_probe/audit": "rank_probe/test_audit.py",
    "exporter/causes": "exporter/test_causes*.py",
    "exporter/collectors": "exporter/collectors",
    "exporter/evidence": "exporter/test_evidence*.py",
    "exporter/ingest": "exporter/test_ingest*.py",
    "exporter/listeners": "exporter/test_*er[sv]*.py",
    "exporter/live": "exporter/test_live_*.py",
    "exporter/nvml": "exporter/nvml",
    "exporter/processes": "exporter/processes",
    "exporter/ranks": "exporter/test_ranks_*.py",
    "rankskew/compare": "rankskew/test_[cf]*.py",
    "rankskew/diagnose": "rankskew/test_[df]*.py",
    "rankskew/replay": "rankskew/test_[rt]*.py",
    "rankskew/report": "rankskew/test_re*.py",
    "rankskew/top": "rankskew/test_[ft]*.py",
}
OPPOSITE: Final[dict[type[ast.AST], type[Any]]] = {
    **{ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
}


class Mutant(NamedTuple):
    """A module in which *new* stands for *old*."""

    module: Path
    what: str
    old: ast.expr
    new: str

    def source(self, original: bytes) -> bytes:
        """Return *original*, the module's source, with the change."""
        lines, old = original.splitlines(keepends=True), self.old
        begin, end = old.lineno - 1, (old.end_lineno or old.lineno) - 1
        before = b"".join(lines[:begin]) + lines[begin][: old.col_offset]
        after = lines[end][old.end_col_offset :] + b"".join(lines[end + 1 :])
        return before + f"({self.new})".encode() + after


def changes(node: ast.AST) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """Yield what may be changed at *node*: the kind of change, the old expression, the new one."""
    match node:
        case ast.Compare(left, [first, *rest], others) if type(first) in OPPOSITE:
            yield "compare", node, ast.Compare(left, [OPPOSITE[type(first)](), *rest], others)
        case ast.BoolOp(operator, values):
            yield "and, or", node, ast.BoolOp(OPPOSITE[type(operator)](), values)
        case ast.BinOp(left, operator, right) if type(operator) in OPPOSITE:
            yield "arithmetic", node, ast.BinOp(left, OPPOSITE[type(operator)](), right)
        case ast.UnaryOp(ast.Not(), operand):
            yield "not", node, ast.Call(ast.Name("bool"), [operand], [])
        case ast.Constant(int() | float() as number) if not isinstance(number, bool):
            yield "number", node, ast.Constant(number + 1)
        case ast.If(test):
            yield "if", test, ast.UnaryOp(ast.Not(), test)
        case ast.Return(ast.expr() as value) if ast.unparse(value) != "None":
            yield "return", value, ast.Constant(None)
        case ast.Expr(ast.Call() as call):
            yield "call", call, ast.Constant(None)


def mutants(module: Path, node: ast.AST, function: str = "") -> Iterator[Mutant]:
    """Yield those of each function below *node*."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            continue  # Python 3.11 does not know where in it an expression stands.
        inner = function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{function}.{child.name}".strip(".")
        for kind, old, new in changes(child) if inner else ():
            what = f"{inner}: {kind}: {ast.unparse(old)} -> {ast.unparse(new)}"
            yield Mutant(module, what, old, ast.unparse(new))
        yield from mutants(module, child, inner)


def chosen(room: str) -> list[Mutant]:
    """Return OF_EACH mutants of the modules of *room*, the same as long as their code is."""
    modules = [path.relative_to(ROOT) for path in sorted((ROOT / room).rglob("*.py"))]
    parsed = [(path, ast.parse((ROOT / path).read_bytes())) for path in modules]
    every = [each for path, tree in parsed for each in mutants(path, tree)]
    return sorted(every, key=lambda each: hashlib.sha1(each.what.encode()).digest())[:OF_EACH]


def fails(room: str, checkout: Path, **environment: str) -> bool:
    """Return whether any test of *room* fails in *checkout*, or hangs."""
    env = os.environ | {"PYTHONPATH": str(checkout)} | environment
    tests = map(str, checkout.glob(f"tests/{ROOMS[room]}"))
    unheard: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        done = subprocess.run([*PYTEST, *tests], cwd=checkout, env=env, timeout=LONGEST, **unheard)
    except subprocess.TimeoutExpired:  # A thread that never ends keeps pytest from ending.
        return True
    return done.returncode != 0


def survivors(room: str, checkout: Path) -> list[str]:
    """Return the mutants that the tests of *room* let pass, each in turn in a new *checkout*."""
    shutil.copytree(ROOT, checkout, symlinks=True, ignore=shutil.ignore_patterns(".*", "dist"))
    assert not fails(room, checkout), f"tests of {room} fail without any change"
    survived = []
    for mutant in chosen(room):
        path, original = checkout / mutant.module, (ROOT / mutant.module).read_bytes()
        path.write_bytes(mutant.source(original))
        if not fails(room, checkout, PYTHONDONTWRITEBYTECODE="1"):
            survived.append(f"{mutant.module}: {mutant.what}")
        path.write_bytes(original)
    return survived


def test_few_changes_get_past_the_tests(tmp_path: Path) -> None:
    """Of some hundred wrong comparisons, numbers and missing calls most are noticed."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        folders = [tmp_path / str(number) for number in range(len(ROOMS))]
        survived = [each for some in pool.map(survivors, ROOMS, folders) for each in some]
    caught = 1 - len(survived) / (OF_EACH * len(ROOMS))
    print(*survived, f"{caught:.0%} of {OF_EACH * len(ROOMS)} were caught", sep="\n")
    assert caught >= SHARE
