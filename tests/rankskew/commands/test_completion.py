"""A shell that has read the script completes the commands and flags of `rankskew`."""

import subprocess

import pytest

from exporter.settings import flags
from rankskew.__main__ import main
from rankskew.cli import SHELLS
from rankskew.commands.table import COMMANDS
from tests.rankskew.test_cli import EXPORTER, without

# What bash does at a tab: the words so far, then the function that the script has registered.
TAB = """
{script}
COMP_WORDS=({words}) COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
function=$(complete -p rankskew | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function rankskew "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="0"):
        main(["--print-completion", shell])
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ex", {"exporter"}),
        ("''", set(COMMANDS)),
        ("replay --js", {"--json"}),
        ("exporter --log", {"--log.format", "--log.level"}),
        ("exporter --no-collector.gpu_x", {"--no-collector.gpu_xid"}),
        ("control llama d", {"detail"}),
        ("control --re", {"--release-gpus", "--resume-gpus"}),
    ],
)
def test_bash_completes(typed: str, offered: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    """bash accepts the script, and offers the commands, flags and choices that begin so."""
    program = TAB.format(script=script("bash", capsys), words=f"rankskew {typed}")
    done = subprocess.run(
        ["bash", "--norc", "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stderr == ""
    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_is_told_every_command_and_flag(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script is made from the parsers, so it misses nothing."""
    printed = script(shell, capsys)

    assert "rankskew" in printed
    for name in [*COMMANDS, *(flag.name.lstrip("-") for _, flag in flags())]:
        assert name in printed


def test_commands_that_are_not_installed_are_left_out() -> None:
    """Beside a Prometheus there is no exporter to start, and the rest is completed."""
    printed = without(EXPORTER, "--print-completion", "bash")

    assert printed.stderr == ""
    assert "--prometheus" in printed.stdout
    assert "--ranks.max" not in printed.stdout
