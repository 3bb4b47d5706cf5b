"""What the grammars of `rank-probe check`, `audit` and `bench-collectives` have in common.

`run` has none of it: a training job waits for that, and argparse takes a while to import.
"""

import argparse
import re
from typing import Final, NoReturn

from rank_probe.command_line.grammar import WrongCommand

UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line; its texts are shown as they are written."""

    def __init__(self, command: str, description: str, examples: str) -> None:
        super().__init__(
            prog=f"rank-probe {command}",
            description=description,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise WrongCommand(message, f"{self.prog} --help")


def duration(text: str) -> float:
    """Return the seconds of a duration such as 30s."""
    match = re.fullmatch(r"(\d{1,6})(s|m|h)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 30s or 5m")
    return float(match[1]) * UNIT_SECONDS[match[2]]


def positive_duration(text: str) -> float:
    """Return the seconds of a duration that is not 0."""
    seconds = duration(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration above 0")
    return seconds
