"""A command does what its flags say, or ends with one line that says what is wrong."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from exporter.commands.exporter import parse_settings
from exporter.settings import Settings
from rank_probe.version import __version__
from rankskew.__main__ import main
from rankskew.commands.table import COMMANDS
from tests.exporter.running import ROOT


def test_flags_reach_their_settings() -> None:
    """Without any, an exporter runs with the documented defaults."""
    settings = parse_settings(
        [
            "--ranks.max=8",
            "--ranks.finished-retention",
            "90s",
            "--ingest.socket=",
            "--operator.socket=",
            "--no-collector.ranks",
            "--series.detail=gpu_pcie, gpu_nvlink",
            "--log.level=warning",
        ]
    )

    assert parse_settings([]) == Settings()
    assert settings == Settings(
        ranks_max=8,
        ranks_finished_retention_seconds=90.0,
        ingest_socket="",
        operator_socket="",
        log_level="warning",
        series_detail=frozenset({"gpu_pcie", "gpu_nvlink"}),
        collectors_off=frozenset({"ranks"}),
    )


def test_collector_can_be_switched_on_again() -> None:
    """The last of two opposite switches counts, so a wrapper's default can be overruled."""
    switches = ["--no-collector.ranks", "--collector.ranks"]

    assert parse_settings(switches).collectors_off == frozenset()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_commands_are_listed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`rankskew` alone, as with --help, shows each command on a line, and is no mistake."""
    try:
        status: int | str | None = main(arguments)
    except SystemExit as ended:
        status = ended.code

    output = capsys.readouterr()
    assert (status, output.err) == (0, "")
    for name, command in COMMANDS.items():
        assert f"\n  {name:<16}{command.sentence}\n" in output.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_ends_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever asks a command for help sees how it is used, as lines to copy."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])

    last = capsys.readouterr().out.rpartition("\n\n")[2].splitlines()
    assert ended.value.code == 0
    assert last[0] == "examples:"
    assert len(last) > 1
    assert all(line.startswith(f"  rankskew {command}") for line in last[1:])
    assert max(map(len, last)) <= 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--version"], [f"rankskew {__version__}"]),
        (
            ["exporter", "--help"],
            ["--ranks.finished-retention", "(default: 5m)", "--no-collector.node_cpu"],
        ),
    ],
)
def test_version_and_help_are_printed(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of probe and exporter; each flag with its default."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    text = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert all(word in text for word in words)


# As if an extra had not been installed: none of these packages can be imported.
WITHOUT = """
import sys

MISSING = {missing!r}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from rankskew.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
EXPORTER: Final = ("fastapi", "starlette", "uvicorn", "httptools", "prometheus_client", "psutil")
CLI: Final = ("urllib3", "rich", "shtab")
BOTH: Final = ("pydantic", "yaml")
EVERY: Final = (*EXPORTER, *CLI, *BOTH, "bcrypt", "pynvml")


def without(missing: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command where the packages *missing* are not installed."""
    command = [sys.executable, "-c", WITHOUT.format(missing=set(missing)), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        (EXPORTER, ("exporter",), "exporter"),
        (EXPORTER, ("simulate",), "exporter"),
        (CLI, ("top", "--once"), "cli"),
        (CLI, ("diagnose", "--exporter", "127.0.0.1:1"), "cli"),
        (CLI, ("--print-completion", "bash"), "cli"),
        (BOTH, ("replay", "trace"), "cli"),
        (("mcp",), ("mcp",), "mcp"),
    ],
)
def test_missing_package_is_one_line_that_says_what_to_install(
    missing: Sequence[str], arguments: Sequence[str], extra: str
) -> None:
    ended = without(missing, *arguments)

    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("rankskew: ")
    assert f"is not installed: run pip install 'rankskew[{extra}]'" in ended.stderr


@pytest.mark.parametrize("command", ["exporter", "control", "simulate"])
def test_commands_of_a_node_need_nothing_of_the_client(command: str) -> None:
    assert without(CLI, command, "--help").returncode == 0


@pytest.mark.parametrize(
    "command", sorted(name for name, each in COMMANDS.items() if each.extra == "cli")
)
def test_commands_for_people_need_nothing_of_an_exporter(command: str) -> None:
    assert without(EXPORTER, command, "--help").returncode == 0


def test_base_install_knows_its_version_and_its_files(tmp_path: Path) -> None:
    assert without(EVERY, "--version").stdout == f"rankskew {__version__}\n"
    assert without(EVERY, "files", str(tmp_path / "out")).returncode == 0
    assert (tmp_path / "out" / "alerts" / "alertmanager.yaml").is_file()


def test_reader_that_has_seen_enough_is_no_failure(tmp_path: Path) -> None:
    """Whatever is printed into `head` after its last line is thrown away, without a traceback."""
    command = f"{sys.executable} -m rankskew files {tmp_path}/out | true"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.stderr == ""
