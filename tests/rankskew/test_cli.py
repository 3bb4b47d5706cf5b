"""The command line: a command does what its flags say, or ends with one line that says why not."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from exporter import bundle
from exporter.bundle import PLACES, bundled
from exporter.commands.exporter import parse_settings
from exporter.errors import UsageError
from exporter.settings import Settings
from fleet_simulator.faults import KINDS
from rank_probe.version import __version__
from rankskew.__main__ import main
from rankskew.commands import top
from rankskew.commands.files import write_files
from rankskew.commands.table import COMMANDS
from tests.exporter.running import ROOT
from tests.printed import assert_golden

Captured = pytest.CaptureFixture[str]


def test_flags_reach_their_settings() -> None:
    """Without any, an exporter runs with the documented defaults.

    The last of two opposite switches counts, so a wrapper's default can be overruled.
    """
    settings = parse_settings(
        [
            "--ranks.max=8",
            *("--ranks.finished-retention", "90s"),
            "--ingest.socket=",
            "--operator.socket=",
            "--no-collector.ranks",
            "--series.detail=gpu_pcie, gpu_nvlink",
            "--log.level=warning",
        ]
    )

    assert parse_settings([]) == Settings()
    assert parse_settings(["--no-collector.ranks", "--collector.ranks"]) == Settings()
    assert settings == Settings(
        ranks_max=8,
        ranks_finished_retention_seconds=90.0,
        ingest_socket="",
        operator_socket="",
        log_level="warning",
        series_detail=frozenset({"gpu_pcie", "gpu_nvlink"}),
        collectors_off=frozenset({"ranks"}),
    )


def shown(arguments: list[str], capsys: Captured) -> str:
    """Return what a command prints that ends well, as with --help."""
    try:
        status: int | str | None = main(arguments)
    except SystemExit as ended:
        status = ended.code
    said = capsys.readouterr()
    assert (status, said.err) == (0, "")
    return said.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_ends_with_an_example(command: str, capsys: Captured) -> None:
    """Whoever asks for help sees how it is used, as lines to copy; flags have their defaults."""
    said = shown([command, "--help"], capsys)
    last = said.rpartition("\n\n")[2].splitlines()

    assert last[0] == "examples:"
    assert len(last) > 1
    assert all(line.startswith(f"  rankskew {command}") for line in last[1:])
    assert max(map(len, last)) <= 100
    if command == "exporter":
        for words in ("--ranks.finished-retention", "(default: 5m)", "--no-collector.node_cpu"):
            assert words in " ".join(said.split())
    if command == "simulate":
        assert {kind.name for kind in KINDS} <= {*said.split()}


# ---- Wrong usage ---------------------------------------------------------------------------------


USAGE: Final = f"""\
--verison
xyz
exporter --series.detail=gpu_pcie,gpus
exporter --log.level=loud
exporter --rank.max=8
exporter --ranks.max=none
exporter --ranks.silent-retention=60
exporter --nvml.interval=0s
exporter --ranks.silent-retention=0s
exporter --grafana.url=grafana:3000
exporter --ingest.socket-mode=rw
exporter --web.listen-address=9917
exporter --web.config.file=/nowhere/web.yaml
control --release-gpus --for=0s
replay
control
control llama off --release-gpus
control --resume-gpus --for 1m
control --release-gpus --resume-gpus
top --prometheus http://p --exporter http://n
top --cluster eu
top --exporter ftp://n
top --exporter http://
top --exporter http://a:b
top --exporter http://[::1
top --exporter 'a b'
top --interval 0s
top --http.config.file=/nowhere.yaml
top --header=X-Scope-OrgID
top --header='Authorization: Bearer s3cret'
mcp --cluster eu
mcp --prometheus http://u:s3cret@p
diagnose --at 10h
diagnose --at 2026-11-23
compare 14:05 --prometheus http://127.0.0.1:1
replay --time-scale=0 /nowhere.csv
replay --time-scale=1001 /nowhere.csv
replay /nowhere.csv
report
report --incidents --since soon
report --incidents --at=-9999y
diagnose --prometheus http://p --at 1767225600000000000
replay /{"x" * 256}
files /{"x" * 256}
simulate --nodes 0
simulate --nodes 2 --fault pcie:node=2
simulate --nodes 3 --jobs 2
simulate --fault pcie
simulate --series.detail gpu_heat
control a off --exporter unix:/nowhere
files /proc/out
"""


def test_wrong_usage_is_one_line_and_exit_2(capsys: Captured) -> None:
    """A wrong flag, value or file, or options that do not go together: nothing is asked then.

    1 would have a script believe that something was found.
    """
    texts = {}
    for command_line in USAGE.splitlines():
        status = main(shlex.split(command_line))
        output = capsys.readouterr()
        texts[f"rankskew {command_line}"] = output.err
        assert (status, output.out, output.err.count("\n")) == (2, "", 1), command_line
        assert "s3cret" not in output.err
    assert_golden("usage", texts)


def test_fault_of_ours_is_no_finding(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """Python itself would end with 1."""
    monkeypatch.setattr(top, "run", lambda arguments: 1 // 0)

    assert main(["top"]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


# ---- What is installed ---------------------------------------------------------------------------

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
NO_SOCKETS: Final = "--ingest.socket= --operator.socket="
EVERY: Final = (*EXPORTER, *CLI, *BOTH, "bcrypt", "pynvml")


def without(missing: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command where the packages *missing* are not installed."""
    command = [sys.executable, "-c", WITHOUT.format(missing=set(missing)), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("missing", "command", "problem"),
    [
        (EXPORTER, "exporter", "is not installed: run pip install 'rankskew[exporter]'"),
        (CLI, "top --once", "is not installed: run pip install 'rankskew[cli]'"),
        (CLI, "--print-completion bash", "is not installed: run pip install 'rankskew[cli]'"),
        (BOTH, "replay trace", "is not installed: run pip install 'rankskew[cli]'"),
        (("mcp",), "mcp", "is not installed: run pip install 'rankskew[mcp]'"),
        # A node needs nothing of the client: they come as far as the network, or to the socket.
        (CLI, "exporter --web.listen-address=192.0.2.1:9 " + NO_SOCKETS, "192.0.2.1"),
        (CLI, "control --resume-gpus --exporter unix:/nowhere", "no exporter answers at unix:/now"),
    ],
)
def test_missing_package_is_one_line_that_says_what_to_install(
    missing: Sequence[str], command: str, problem: str
) -> None:
    ended = without(missing, *command.split())

    assert ended.returncode == 2
    assert ended.stderr.startswith("rankskew: ")
    assert problem in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_commands_for_people_need_nothing_of_an_exporter() -> None:
    """Beside a Prometheus there is no exporter to start; completion has all that is left."""
    printed = without(EXPORTER, "--print-completion", "bash")

    assert printed.stderr == ""
    assert "--prometheus" in printed.stdout
    assert "--ranks.max" not in printed.stdout
    for name in (name for name, command in COMMANDS.items() if command.extra == "cli"):
        assert f"_shtab_rankskew_{name.replace('-', '_')}_option_strings" in printed.stdout


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


# ---- Completion ----------------------------------------------------------------------------------

# What bash does at a tab: the words so far, then the function that the script has registered.
TAB = """
{script}
COMP_WORDS=({words}) COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
function=$(complete -p rankskew | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function rankskew "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ex", {"exporter"}),
        ("''", set(COMMANDS)),
        ("exporter --no-collector.gpu_x", {"--no-collector.gpu_xid"}),
        ("control --re", {"--release-gpus", "--resume-gpus"}),
    ],
)
def test_bash_completes(typed: str, offered: set[str], capsys: Captured) -> None:
    """bash accepts the script, and offers the commands, flags and choices that begin so."""
    program = TAB.format(
        script=shown(["--print-completion", "bash"], capsys), words=f"rankskew {typed}"
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stderr == ""
    assert set(done.stdout.split()) == offered


# ---- Files ---------------------------------------------------------------------------------------


# A file of each place, which may be a file itself.
FILES: Final = {name if Path(name).suffix else f"{name}/one.txt" for name in PLACES}


def installed(kind: str, directory: Path) -> Path:
    """Return the package directory of a small installation: a wheel, or a checkout."""
    package = directory / "installed" / "exporter"
    for name, place in PLACES.items():
        path = package / "bundled" / name if kind == "wheel" else package.parent / place
        file = path if path.suffix else path / "one.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return package


@pytest.mark.parametrize("kind", ["wheel", "checkout"])
def test_files_are_written_and_no_work_is_lost(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tree from either kind of installation; what a scheduler runs is executable.

    Somebody's edited Alertmanager configuration does not vanish in an upgrade.
    """
    monkeypatch.setattr(bundle, "PACKAGE", installed(kind, tmp_path))
    (bundled("deploy/systemd") / "one.txt").write_text("#!/bin/sh\n")
    out = tmp_path / "out"
    written = write_files(out)

    assert sorted(written) == sorted(path for path in out.glob("**/*") if path.is_file())
    assert {str(path.relative_to(out)) for path in written} == FILES
    executable = [path for path in written if path.stat().st_mode & 0o1]
    assert executable == [out / "deploy/systemd/one.txt"]
    write_files(out)
    edited = out / "alerts" / "alertmanager.yaml"
    edited.write_text("mine")
    with pytest.raises(UsageError, match=r"alertmanager.yaml was changed: .* add --overwrite"):
        write_files(out)
    assert edited.read_text() == "mine"
    write_files(out, overwrite=True)
    assert edited.read_text() == "alerts/alertmanager.yaml"
