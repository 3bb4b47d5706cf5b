"""What `rankskew top` shows of jobs, and `rankskew diagnose` reports on one, as golden texts."""

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from rankskew.__main__ import main
from rankskew.diagnose.model import Report
from rankskew.diagnose.render import in_words
from rankskew.render import render
from rankskew.top.model import FleetStatus
from rankskew.top.view import View


def drawn(fleet: FleetStatus, width: int = 160, colours: bool = False) -> str:
    """Return what *fleet* looks like on a terminal of *width*."""
    out = io.StringIO()
    Console(
        file=out,
        width=width,
        highlight=False,
        force_terminal=colours,
        color_system="truecolor" if colours else None,
    ).print(View(fleet))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def both(fleet: FleetStatus, report: Report) -> str:
    """Return what both print of one job, without its ranks and the advice's steps and proof.

    tests/fixtures/client has these for one job too, in top.txt and in diagnose.txt.
    """
    findings = tuple(
        replace(each, steps=(), proof="", links=each.links[:1]) for each in report.findings
    )
    view = drawn(replace(fleet, jobs=[replace(each, ranks=()) for each in fleet.jobs]))
    brief = replace(report, source="http://there", findings=findings)
    return f"{view}\n\n{render(in_words(brief))}"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return the document that a command prints."""
    main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)
