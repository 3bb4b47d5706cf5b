"""Argument parsing that the commands share: one-line errors, durations, numbers."""

import argparse
from math import isfinite
from typing import Any, Final, NoReturn

from exporter import durations
from exporter.errors import UsageError

# Of a trace: a step of two milliseconds becomes one of two seconds.
MOST_TIME_SCALE: Final = 1000


class Help(argparse.HelpFormatter):
    """Wraps text, but keeps text of several lines as it is: lists and examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # As argparse's own do.
        return text if "\n" in text else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports errors in one line instead of a page of usage.

    Its help ends with *examples*, one command line each, after the *epilog*.
    """

    def __init__(self, examples: str = "", epilog: str = "", **options: Any) -> None:
        lines = "\n".join(f"  {line}" for line in examples.splitlines())
        parts = [epilog, f"examples:\n{lines}" if examples else ""]
        text = "\n\n".join(part for part in parts if part)
        usual: dict[str, Any] = {"formatter_class": Help, "allow_abbrev": False}
        super().__init__(epilog=text, **(usual | options))

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def add_json(options: argparse._ActionsContainer, fields: str) -> None:
    """Add --json; *fields* says what the document has."""
    options.add_argument("--json", action="store_true", help=f"print one JSON document: {fields}")


def add_duration(options: argparse.ArgumentParser, name: str, default: str, what: str) -> None:
    """Add *name*, a duration above 0; *what* says for what."""
    told = f"{what} (default: %(default)s)"
    options.add_argument(name, metavar="DURATION", type=interval, default=default, help=told)


def duration(text: str) -> float:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def interval(text: str) -> float:
    seconds = duration(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration above 0")
    return seconds


def positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def time_scale(text: str) -> float:
    scale = positive(text)
    if scale > MOST_TIME_SCALE:
        raise argparse.ArgumentTypeError(f"{text!r} is over {MOST_TIME_SCALE}")
    return scale


def whole_positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
