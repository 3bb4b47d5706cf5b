"""The grammar of `rank-probe`, which is also that of `python -m rank_probe`."""

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

USAGE: Final = """\
usage: rank-probe [run] SCRIPT [ARGUMENT ...]     run a script with its stages timed
       rank-probe [run] -m MODULE [ARGUMENT ...]  run a module with its stages timed
       rank-probe check [OPTION ...]              say whether ranks could report from here
       rank-probe audit [OPTION ...]              say what is wrong with this launch or node
       rank-probe bench-collectives [OPTION ...]  time collectives and links, name a slow one
       rank-probe --help | --version

`python -m rank_probe` is the same command, and so runs under a launcher:
       torchrun --nproc-per-node 8 -m rank_probe SCRIPT [ARGUMENT ...]
RANK_PROBE=0 turns the probe off; RANKSKEW_EXPORTER sets the address of the exporter.
A script called like one of these commands is ./run, ./check, ./audit or ./bench-collectives.

examples:
  torchrun --nproc-per-node 8 -m rank_probe train.py --lr 0.1
  RANKSKEW_JOB_ID=llama srun python -m rank_probe -m pkg.train
  rank-probe check --wait 60s    # rank-probe check --help has more
  torchrun --nproc-per-node 8 -m rank_probe audit
  torchrun --nproc-per-node 8 -m rank_probe bench-collectives --duration 60s"""

# deepspeed and torch.distributed.launch put this before the other arguments of what they start.
LAUNCHERS_OPTIONS: Final = ("--local_rank=", "--local-rank=")


class WrongCommand(Exception):
    """The command cannot be run; the message says why, and *help* is the command that helps."""

    def __init__(self, message: str, help: str = "rank-probe --help") -> None:
        super().__init__(message)
        self.help = help


@dataclass(frozen=True, slots=True)
class Invocation:
    """What to do, and for `run` what to run with which arguments."""

    action: Literal["run", "check", "audit", "bench-collectives", "help", "version"]
    target: str = ""
    is_module: bool = False
    arguments: tuple[str, ...] = ()


def parse(words: Sequence[str]) -> Invocation:
    """Return the command in *words*, the arguments of the process; raises WrongCommand.

    The launcher's own option, before everything else, becomes the script's first argument: there
    the launcher puts it without the probe.
    """
    passed_on = tuple(words[:1]) if words and words[0].startswith(LAUNCHERS_OPTIONS) else ()
    match words[len(passed_on) :]:
        case ["run", *rest]:
            return _run(rest, passed_on)
        case ["check" | "audit" | "bench-collectives" as action, *rest]:
            return Invocation(action, arguments=tuple(rest))
        case rest:
            return _run(rest, passed_on)


def _run(words: Sequence[str], passed_on: tuple[str, ...]) -> Invocation:
    match words:
        case []:
            raise WrongCommand("expected a script, -m MODULE, check, audit or bench-collectives")
        case ["-h" | "--help", *_]:
            return Invocation("help")
        case ["--version", *_]:
            return Invocation("version")
        case ["-m"]:
            raise WrongCommand("-m must be followed by the name of a module")
        case ["-m", module, *arguments]:
            _require_module(module)
            return Invocation("run", module, True, (*passed_on, *arguments))
        case [option, *_] if option.startswith("-"):
            raise WrongCommand(f"unknown option {option!r}; those of the script come after it")
        case [script, *arguments]:
            _require_script(script)
            return Invocation("run", script, False, (*passed_on, *arguments))
    raise AssertionError("every list of words is one of these")


def _require_script(script: str) -> None:
    if not Path(script).is_file():
        raise WrongCommand(f"there is no script {script!r} in {os.getcwd()}")


def _require_module(module: str) -> None:
    """Look for the package only: to look further would import it, before the probe starts."""
    package = module.partition(".")[0]
    here = [] if sys.flags.safe_path else [os.getcwd()]
    if importlib.machinery.PathFinder.find_spec(package, here) or importlib.util.find_spec(package):
        return
    raise WrongCommand(f"there is no module {package!r} in {os.getcwd()} or on sys.path")
