"""The options that say how the servers that a command asks are reached."""

import argparse
from pathlib import Path

from rankskew.client.access import Access


def add_access(options: argparse.ArgumentParser) -> None:
    """Add what says how the servers that a command asks are reached; access() reads it."""
    group = options.add_argument_group("how servers are reached")
    group.add_argument(
        "--http.config.file",
        dest="http_config_file",
        metavar="FILE",
        type=Path,
        help="tokens, passwords, certificates and headers in Prometheus' format for clients, as "
        "promtool takes it",
    )
    group.add_argument(
        "--header",
        metavar="'NAME: VALUE'",
        type=_header,
        action="append",
        default=[],
        help="send this too, as in --header 'X-Scope-OrgID: team-a'; all users of this machine can "
        "see it",
    )


def access(options: argparse.Namespace) -> Access:
    """Return what the *options* of add_access say; raises UsageError."""
    said = Access(options.http_config_file, tuple(options.header))
    said.read()  # What is wrong with it is said before anything is asked.
    return said


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("expected 'NAME: VALUE'")
    return name.strip(), value.strip()
