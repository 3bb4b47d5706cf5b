"""Evaluates rules over given series with promtool, the only tool that does it as Prometheus does.

`promtool test rules` prints the result of an expression only if it differs from the expectation. So
this expects nothing from the expression at each evaluation, and parses the failures. The output is
that of Prometheus 2.42; 3.x prints the same (cmd/promtool/unittest.go).
"""

import ast
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exporter import durations
from exporter.errors import UsageError, reason, text_of

# Evaluated last, and always answered: without this answer, promtool did not finish.
SENTINEL: Final = "vector(42)"
# Its queries hold 10,000 samples, and no flag changes that (promql/test.go, LazyLoader).
TOO_MANY: Final = "too many samples"
_GROUP: Final = re.compile(r"^ *- *name: *[\"']?([\w:.-]+).*$", re.MULTILINE)
_RECORD: Final = re.compile(r"\brecord: *[\"']?([\w:]+)")
_ANSWER: Final = re.compile(r'^ *expr: "((?:[^"\\]|\\.)*)", time: (\S+),$')
_LABEL: Final = re.compile(r'"?([\w.:]+)"?=("(?:[^"\\]|\\.)*")(?:, )?')
_SAMPLE: Final = re.compile(r'\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\} ([^,\s]+)(?:, )?')


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of one series; its metric name is the label `__name__`."""

    labels: dict[str, str]
    value: float


def rule_files(directory: Path) -> list[Path]:
    """Return the rule files in *directory*, absolute; UsageError if there are none.

    Hidden files are skipped: they are locks and copies of editors.
    """
    found = [*directory.glob("*.yaml"), *directory.glob("*.yml")]
    files = sorted(path for path in found if not path.name.startswith("."))
    if not files:
        raise UsageError(f"{directory} has no rule file; expected *.yaml, as in alerts/rules")
    return [path.resolve() for path in files]


def evaluate(
    rules: Sequence[Path],
    series: Iterable[dict[str, str]],
    expression: str,
    times: Sequence[float],
    interval_seconds: float,
) -> dict[float, list[Sample]]:
    """Return the result of *expression* at each of *times*, after evaluating the *rules* then.

    *series* have a value for each *interval_seconds* from 0 on, in promtool's notation. All groups
    of rules are evaluated at this interval, whatever they state. Raises UsageError if promtool is
    missing, does not accept the rules, or cannot hold so many series.
    """
    interval = durations.show(interval_seconds)
    asked = [{"expr": expression, "eval_time": durations.show(time)} for time in times]
    asked.append({"expr": SENTINEL, "eval_time": durations.show(times[-1])})
    tests = {
        "rule_files": [str(path) for path in rules],
        "group_eval_order": group_order(rules),
        "evaluation_interval": interval,
        "tests": [
            {"interval": interval, "input_series": list(series), "promql_expr_test": asked},
        ],
    }
    with tempfile.TemporaryDirectory(prefix="rankskew-") as folder:
        path = Path(folder) / "replay.yaml"
        # JSON is YAML, and ten times faster to write.
        path.write_text(json.dumps(tests, ensure_ascii=False), encoding="utf-8")
        said = _run("promtool", "test", "rules", str(path))
    answers = parse(said)
    if SENTINEL not in answers or TOO_MANY in said:
        raise UsageError(_complaint(said))
    found = answers.get(expression, {})
    return {time: found.get(round(time, 3), []) for time in times}


def parse(said: str) -> dict[str, dict[float, list[Sample]]]:
    """Return the samples in promtool's failures, by expression and evaluation time in seconds."""
    answers: dict[str, dict[float, list[Sample]]] = {}
    at: dict[float, list[Sample]] = {}
    time = 0.0
    for line in said.splitlines():
        if match := _ANSWER.match(line):
            at = answers.setdefault(ast.literal_eval(f'"{match[1]}"'), {})
            time = round(durations.parse(match[2]), 3)
        elif line.lstrip().startswith("got: {"):
            at[time] = [_sample(match) for match in _SAMPLE.finditer(line)]
    return answers


def _sample(match: re.Match[str]) -> Sample:
    # Go quotes as Python does.
    labels = {name: ast.literal_eval(text) for name, text in _LABEL.findall(match[1])}
    return Sample(labels, float(match[2]))


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, encoding="utf-8"
        )
    except FileNotFoundError as error:
        raise UsageError(
            "promtool is not on the PATH, and replay evaluates the rules with it: it comes with "
            "Prometheus (Debian: apt install prometheus)"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot run promtool: {reason(error)}") from error
    return done.stdout + done.stderr


def _complaint(said: str) -> str:
    """Return the cause, from promtool's first words that are not an answer."""
    if TOO_MANY in said:
        return (
            "the trace has too many ranks for promtool, which holds 10,000 samples in a query; "
            "replay a part of them, such as those of one peer group"
        )
    lines = [line.strip() for line in said.splitlines()]
    words = ("", "FAILED:", "SUCCESS")
    own = [line for line in lines if line not in words and not line.startswith("Unit Testing:")]
    return f"promtool cannot evaluate the rules: {own[0] if own else 'it said nothing'}"


def group_order(rules: Sequence[Path]) -> list[str]:
    """Return the groups in *rules*, each after the groups that it reads from, as far as possible.

    A real Prometheus evaluates them concurrently, so a group may read another one's result of the
    previous evaluation. If two groups read each other, the first by name comes first. Raises
    UsageError if a file cannot be read.
    """
    bodies: dict[str, str] = {}
    for path in rules:
        _, *parts = _GROUP.split(text_of(path))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            bodies[name] = bodies.get(name, "") + body
    recorded = {name: set(_RECORD.findall(body)) for name, body in bodies.items()}
    words = {name: set(re.findall(r"[\w:]+", body)) for name, body in bodies.items()}
    reads = {
        name: {o for o in bodies if o != name and words[name] & recorded[o]} for name in bodies
    }
    # Groups that need fewer others come first; groups that read each other need equally many.
    return sorted(bodies, key=lambda name: (len(_needs(name, reads)), name))


def _needs(name: str, reads: Mapping[str, set[str]]) -> set[str]:
    """Return *name* and the groups that it *reads*, directly or indirectly."""
    found: set[str] = set()
    new = {name}
    while new:
        found |= new
        new = {other for each in new for other in reads[each]} - found
    return found
