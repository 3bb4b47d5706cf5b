"""`rankskew mcp`: the Model Context Protocol, for assistants; it only reads."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from exporter.commands.arguments import Parser
from exporter.errors import UsageError
from exporter.ingest.token_file import TokenFile
from exporter.listeners.sockets import host_and_port, open_tcp
from rankskew.client.fetch import LOOPBACK, base_url
from rankskew.commands.servers import access, add_access
from rankskew.mcp.ask import AskedServers

EXAMPLES: Final = """\
rankskew mcp --prometheus http://prometheus:9090
rankskew mcp --prometheus http://mimir/prometheus --header 'X-Scope-OrgID: team-a' --cluster eu
rankskew mcp --exporter node1:9917 --exporter node2:9917
rankskew mcp --prometheus http://prometheus:9090 --http :9921 --token-file /etc/mcp-token"""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew mcp",
        description="Serve the Model Context Protocol, so that an assistant can ask which jobs "
        "there are, what is wrong with them and what to do. It only reads, and says what the "
        "commands say. An assistant starts it and speaks to it over stdin and stdout.",
        examples=EXAMPLES,
    )
    source = options.add_mutually_exclusive_group()
    source.add_argument("--prometheus", metavar="URL", help="ask this Prometheus: it knows most")
    source.add_argument(
        "--exporter",
        metavar="URL",
        action="append",
        default=[],
        help="ask this exporter; may be given several times (default: that of this node)",
    )
    options.add_argument("--cluster", help="only this cluster of the Prometheus")
    options.add_argument(
        "--http", metavar="HOST:PORT", help="serve HTTP there, at /mcp, instead of stdin and stdout"
    )
    options.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        help="with --http: clients must send the token in this file as Authorization: Bearer "
        "TOKEN; required unless HOST is loopback",
    )
    add_access(options)
    return options


def run(arguments: Sequence[str]) -> int:
    """Serve until stdin ends, or with --http until SIGTERM or SIGINT."""
    options = parser().parse_args(arguments)
    servers = _servers(options)
    with suppress(KeyboardInterrupt):
        from rankskew.mcp.server import serve_http, serve_stdio  # Takes a second.

        if options.http is None:
            # A thread waits for stdin, so nothing gentler ends this.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            asyncio.run(serve_stdio(servers))
            return 0
        host, _ = host_and_port(options.http, "--http")
        token = _token(options, host)
        with open_tcp(options.http, "--http") as listening:
            port = listening.getsockname()[1]
            print(f"rankskew mcp: http://{host or '0.0.0.0'}:{port}/mcp", file=sys.stderr)
            asyncio.run(serve_http(servers, listening, host, token))
    return 0


def _servers(options: argparse.Namespace) -> AskedServers:
    access(options)  # What is wrong with it is said before an assistant asks.
    if options.cluster is not None and options.prometheus is None:
        raise UsageError("--cluster needs --prometheus: an exporter knows no clusters")
    if options.token_file is not None and options.http is None:
        raise UsageError("--token-file needs --http")
    config = options.http_config_file
    reached = [] if config is None else [f"--http.config.file={config}"]
    reached += [f"--header={name}: {value}" for name, value in options.header]
    url = None if options.prometheus is None else base_url(options.prometheus)
    exporters = tuple(base_url(each) for each in options.exporter)
    return AskedServers(url, exporters, options.cluster, tuple(reached))


def _token(options: argparse.Namespace, host: str) -> TokenFile | None:
    """Return the token that clients must send; raises UsageError if they must and there is none."""
    if host not in LOOPBACK and options.token_file is None:
        raise UsageError(
            f"--http: others than this machine may reach {options.http!r}, and without a token "
            "anyone could ask there; use 127.0.0.1:PORT, or give --token-file"
        )
    if host not in LOOPBACK:
        print("rankskew mcp: the token and all answers travel unencrypted", file=sys.stderr)
    return None if options.token_file is None else TokenFile(options.token_file, "--token-file")
