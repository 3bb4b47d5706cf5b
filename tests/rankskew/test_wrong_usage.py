"""Wrong usage ends a command with status 2 and one line that says what is wrong; no usage page."""

import re
import shlex
from pathlib import Path

import pytest

from rankskew.__main__ import main
from rankskew.commands import top
from rankskew.commands.table import COMMANDS


@pytest.mark.parametrize(
    ("command_line", "complaint"),
    [
        ("--verison", "the following arguments are required: COMMAND"),
        ("xyz", "there is no command 'xyz'; see rankskew --help"),
        (
            "exporter --series.detail=gpu_pcie,gpus",
            "--series.detail: no collector is called 'gpus'",
        ),
        ("exporter --log.level=loud", "'loud' is not one of debug, info, warning, error"),
        ("exporter --rank.max=8", "unrecognized arguments: --rank.max=8"),
        ("exporter --ranks.ma=8", "unrecognized arguments: --ranks.ma=8"),
        ("exporter extra", "unrecognized arguments: extra"),
        ("exporter --ranks.max", "argument --ranks.max: expected one argument"),
        ("exporter --ranks.max=none", "--ranks.max: 'none' is not a whole number"),
        ("exporter --ranks.silent-retention=60", "'60' is not a duration such as 5m"),
        ("exporter --nvml.interval=0s", "'0s' is too short: at least 100ms, as the driver"),
        ("exporter --nvml.window=0s", "'0s' is too short: at least 1s, as"),
        ("exporter --ranks.silent-retention=0s", "'0s' is too short: at least 1s, as ranks"),
        ("exporter --ranks.finished-retention=0s", "'0s' is too short: at least 1s, as a"),
        ("exporter --grafana.url=grafana:3000", "'grafana:3000' is not a URL such as"),
        ("exporter --ingest.socket-mode=rw", "'rw' is not an octal file mode"),
        ("exporter --web.listen-address=9917", "'9917' is not host:port"),
        ("exporter --web.config.file=/nowhere/web.yaml", "cannot read /nowhere/web.yaml"),
        ("control --release-gpus --for=0s", "'0s' is not a duration above 0"),
        ("files", "the following arguments are required: directory"),
        ("replay", "the following arguments are required: path"),
        ("control", "give a job and a level, --release-gpus or --resume-gpus"),
        ("control llama", "give a job and a level, --release-gpus or --resume-gpus"),
        ("control llama off --release-gpus", "leave out the job, the level and --rank"),
        ("control --resume-gpus --rank 1", "leave out the job, the level and --rank"),
        ("control --resume-gpus --for 1m", "--for needs --release-gpus"),
        ("control --release-gpus --resume-gpus", "not allowed with argument"),
        ("top --prometheus http://p --exporter http://n", "not allowed with argument"),
        ("top http://n", "unrecognized arguments: http://n"),
        ("top --cluster eu", "--cluster needs --prometheus"),
        ("top --exporter ftp://n", "'ftp://n' is not a URL such as http://node1:9917"),
        ("top --interval 0s", "'0s' is not a duration above 0"),
        ("top --interval 2", "'2' is not a duration such as 5m"),
        ("diagnose --at 10h", "'10h' is not a time; give 14:05, 2026-01-31T14:05, -30m or"),
        ("diagnose --at 2026-11-23", "--at needs --prometheus: only that has a history"),
        ("diagnose --cluster eu", "--cluster needs --prometheus"),
        ("diagnose --prometheus http://p --exporter http://n", "not allowed with argument"),
        ("diagnose --prometheus ftp://p", "'ftp://p' is not a URL"),
        ("compare", "the following arguments are required: A..B"),
        ("compare 14:05 --prometheus http://127.0.0.1:1", "'14:05' is not A..B"),
        ("compare 1..2 --prometheus http://p --window 0s", "'0s' is not a duration above 0"),
        ("compare 1..2 --prometheus ftp://p", "'ftp://p' is not a URL"),
        ("replay --time-scale=0 /nowhere.csv", "'0' is not a number above 0"),
        ("replay --time-scale=1e13 /nowhere.csv", "'1e13' is over 1000"),
        ("replay --time-scale=1001 /nowhere.csv", "'1001' is over 1000"),
        ("replay --time-scale=inf /nowhere.csv", "'inf' is not a number above 0"),
        ("replay --time-scale=fast /nowhere.csv", "'fast' is not a number above 0"),
        ("replay --rules /nowhere.csv", "unrecognized arguments: --rules"),
        ("replay /nowhere.csv", "cannot read /nowhere.csv: No such file or directory"),
        ("report", "one of the arguments --incidents --job is required"),
        ("report --incidents --job a", "not allowed with argument"),
        ("report --incidents --since soon", "'soon' is not a duration"),
        ("report --incidents --at soon", "'soon' is not a time; give 14:05"),
        ("report --incidents --prometheus 'not a url'", "is not a URL"),
        ("report --incidents --json --markdown", "not allowed with argument"),
        ("report --job a --html a.html", "unrecognized arguments: --html a.html"),
        ("simulate --nodes 0", "argument --nodes: '0' is not a whole number of at least 1"),
        ("simulate --nodes many", "argument --nodes: 'many' is not a whole number of at least 1"),
        ("simulate --nodes 2 --fault melted", "there is no fault 'melted'; choose one of loader"),
        ("simulate --nodes 2 --fault pcie:node=2", "pcie: there is no GPU 0 on node 2"),
        ("simulate --nodes 3 --jobs 2", "3 nodes cannot be divided among 2 jobs"),
        ("simulate --fault pcie", "--fault and --jobs need --nodes"),
        ("simulate --jobs 2", "--fault and --jobs need --nodes"),
        ("simulate --listen-address nowhere", "--listen-address"),
        ("simulate --series.detail gpu_heat", "no collector is called 'gpu_heat'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    command_line: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong flag, value or file, or options that do not go together: nothing is asked then."""
    assert main(shlex.split(command_line)) == 2

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("rankskew: ")
    assert complaint in output.err
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    "command_line",
    [
        "top --once --exporter http://127.0.0.1:1",
        "top --once --prometheus http://127.0.0.1:1",
        "diagnose --exporter http://127.0.0.1:1",
        "diagnose --prometheus http://127.0.0.1:1",
        "compare -40m..-10m --prometheus http://127.0.0.1:1",
        "report --job a --prometheus http://127.0.0.1:1",
        "report --job a --prometheus http://127.0.0.1:1 --at 14:05",
        "control a off --exporter unix:/nowhere",
        "control --resume-gpus --exporter unix:/nowhere",
        "files /proc/out",
        "exporter --web.listen-address=192.0.2.1:9",
        "simulate --listen-address 192.0.2.1:9",
    ],
)
def test_what_cannot_be_told_or_done_is_status_2(
    command_line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not 1, by which a script would believe that something was found."""
    assert main(shlex.split(command_line)) == 2
    assert capsys.readouterr().err.startswith("rankskew: ")


def test_fault_of_ours_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python itself would end with 1."""
    monkeypatch.setattr(top, "run", lambda arguments: 1 // 0)

    assert main(["top"]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_page_has_the_statuses_of_every_command() -> None:
    """One table says what 0, 1 and 2 are of each."""
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    [statuses] = re.findall(r"^\| command \| schema .*?\n\n", page, re.MULTILINE | re.DOTALL)
    first = " ".join(re.findall(r"^\| (`.*?) \|", statuses, re.MULTILINE))
    commands = re.findall(r"`(?:rankskew |rank-probe )?([a-z-]+)[^`]*`", first)

    assert {*commands} == {*COMMANDS, "check", "audit", "bench-collectives"}
