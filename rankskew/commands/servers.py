"""The options that say which servers a command asks, about when, and how they are reached."""

import argparse
import time
from pathlib import Path
from typing import Final

from exporter.errors import UsageError
from rankskew.client.fetch import Access, base_url
from rankskew.client.prometheus import Prometheus
from rankskew.times import moment

DEFAULT_URL: Final = "http://127.0.0.1:9090"
EXPORTER_URL: Final = "http://127.0.0.1:9917"


def add_prometheus(options: argparse.ArgumentParser) -> None:
    """Add the options for the Prometheus and its cluster; prometheus() reads the first."""
    options.add_argument(
        "--prometheus",
        metavar="URL",
        default=DEFAULT_URL,
        help="ask this Prometheus (default: %(default)s)",
    )
    options.add_argument("--cluster", help="only this cluster of the Prometheus")


def add_sources(options: argparse.ArgumentParser) -> None:
    """Add the choice of a Prometheus or of exporters."""
    source = options.add_mutually_exclusive_group()
    source.add_argument(
        "--prometheus", metavar="URL", help="read from this Prometheus, the most complete source"
    )
    source.add_argument(
        "--exporter",
        metavar="URL",
        action="append",
        help="read from this exporter; may be given for each node of the job (default: "
        f"{EXPORTER_URL})",
    )
    options.add_argument("--cluster", help="only this cluster of the Prometheus")


def exporters(options: argparse.Namespace) -> list[str]:
    """Return the URLs of the exporters that add_sources has in *options*, each once."""
    return list(dict.fromkeys(map(base_url, options.exporter or [EXPORTER_URL])))


def add_moment(options: argparse._ActionsContainer) -> None:
    """Add the option for the time to look at, or to look back from."""
    options.add_argument(
        "--at",
        metavar="TIME",
        type=_moment,
        help="as of this time: 14:05, 2026-11-23T07:45, in UTC without an offset, Unix seconds, "
        "or =-30m (default: now)",
    )


def add_access(options: argparse.ArgumentParser) -> None:
    """Add the options for how servers are reached; access() reads them."""
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
    said.read()  # Report errors in the file before anything is asked.
    return said


def prometheus(options: argparse.Namespace, timeout_seconds: float | None = None) -> Prometheus:
    """Return the Prometheus of *options*, which has *timeout_seconds* for each answer."""
    url = base_url(options.prometheus)
    return Prometheus(url, timeout_seconds=timeout_seconds, access=access(options))


def _moment(text: str) -> float:
    try:
        return moment(text, time.time())
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("expected 'NAME: VALUE'")
    return name.strip(), value.strip()
