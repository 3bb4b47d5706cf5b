"""Argument parsing that the commands share: one-line errors, durations, numbers."""

import argparse
from math import isfinite
from typing import NoReturn

from exporter import durations
from exporter.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports errors in one line instead of a page of usage."""

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


def whole_positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
