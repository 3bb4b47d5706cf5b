"""What the commands' arguments have in common: complaints of one line, durations, numbers."""

import argparse
from math import isfinite
from typing import NoReturn

from exporter import durations
from exporter.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaints are one line, not a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def duration(text: str) -> float:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def interval(text: str) -> float:
    seconds = duration(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is no time to wait")
    return seconds


def positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number
