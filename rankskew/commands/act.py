"""`rankskew act`: offer the verdict on a node to its scheduler."""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from exporter.commands.arguments import Parser, interval, positive, whole_positive
from exporter.errors import UsageError
from exporter.ingest.token_file import TokenFile
from exporter.listeners.sockets import open_tcp
from rankskew.act.actor import Actor
from rankskew.act.audit import AuditLog
from rankskew.act.evidence import NodeEvidence
from rankskew.act.model import Limits
from rankskew.act.receiver import PATH
from rankskew.act.serve import serve
from rankskew.act.targets.kubernetes import OF_THIS_POD, Kubernetes, ServiceAccount
from rankskew.act.targets.slurm import Slurm
from rankskew.act.targets.target import Target
from rankskew.act.targets.webhook import WebhookTarget
from rankskew.client.access import Access
from rankskew.client.fetch import base_url
from rankskew.client.prometheus import Prometheus
from rankskew.commands.servers import DEFAULT_URL, access, add_access

# As many minutes as Prometheus returns in one query, nearly.
LONGEST_SECONDS: Final = 7 * 86_400.0
EXAMPLES: Final = """\
rankskew act --slurm --token-file act.token --audit act.jsonl
rankskew act --kubernetes --kubernetes.taint --token-file act.token --audit act.jsonl --for-real
rankskew act --webhook https://tickets/rankskew --token-file act.token --audit act.jsonl"""
EPILOG: Final = f"""\
Alertmanager posts its webhook to {PATH}, with the token as its credentials. The status is 0
after SIGTERM or SIGINT, 2 if the address or the audit log cannot be used, or for wrong usage.
docs/act.md has the policy, and how to undo what was done."""


# In the order of the fields of Limits.
LIMITS: Final = (
    ("lasting", interval, "30m", "hold a node that is late for so long"),
    ("times", whole_positive, "3", "or so many times within --window"),
    ("window", interval, "1d", "how far back times count, at most 7d"),
    ("most-nodes", whole_positive, "2", "never hold more nodes at once"),
    ("most-percent", positive, "10", "nor more %% of the cluster or a partition, rounded down"),
    ("job-nodes-left", whole_positive, "1", "leave each running job so many of its nodes"),
    ("back", interval, "1h", "free a node that was judged and not late for so long"),
    ("again", interval, None, "free a node after so long, judged or not"),
)


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew act",
        description="Tell a scheduler of a node that slows jobs down, and of its recovery. What "
        "Alertmanager says is confirmed in Prometheus, limited, and written down. Without "
        "--for-real it only says what it would do.",
        epilog=EPILOG,
        examples=EXAMPLES,
    )
    add = options.add_argument
    token, log = (
        "the token that Alertmanager must send",
        "what is done is logged, and known from it",
    )
    add("--token-file", metavar="FILE", type=Path, required=True, help=token)
    add("--audit", metavar="FILE", type=Path, required=True, help=log)
    add("--for-real", action="store_true", help="act, instead of saying what would be done")
    address = "where Alertmanager's webhook is taken (default: %(default)s)"
    add("--listen-address", metavar="HOST:PORT", default="127.0.0.1:9916", help=address)
    asked = "the Prometheus that is asked whether it is true (default: %(default)s)"
    add("--prometheus", metavar="URL", default=DEFAULT_URL, help=asked)
    add = options.add_argument_group("where it acts, at least one").add_argument
    add("--slurm", action="store_true", help="drain the node, and undrain it")
    api = "set the node's condition RankskewDegraded at this API server, or at that of this pod"
    add("--kubernetes", metavar="URL", nargs="?", const=OF_THIS_POD, help=api)
    taint = "also taint the node, so that no new pod is put there"
    add("--kubernetes.taint", dest="taint", action="store_true", help=taint)
    add("--webhook", metavar="URL", help="post JSON to this URL")
    file, reached = "--target.http.config.file", "how these are reached, as --http.config.file says"
    add(file, metavar="FILE", type=Path, dest="target_http", help=reached)
    add = options.add_argument_group("when, and how many").add_argument
    for name, kind, usual, text in LIMITS:
        metavar = "DURATION" if kind is interval else "N"
        shown = f"{text} (default: {usual or 'never'})"
        add(f"--{name}", metavar=metavar, type=kind, default=usual, help=shown)
    add_access(options)
    return options


def run(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT; raises UsageError or StartError if it cannot start."""
    options = parser().parse_args(arguments)
    limits = Limits(*(getattr(options, name.replace("-", "_")) for name, *_ in LIMITS))
    longest = max(limits.window_seconds, limits.lasting_seconds, limits.back_seconds)
    if longest > LONGEST_SECONDS:
        raise UsageError("--window, --lasting and --back must not be over 7d")
    if limits.most_percent > 100:
        raise UsageError("--most-percent must not be over 100")
    prometheus = Prometheus(base_url(options.prometheus), access=access(options))
    token = TokenFile(options.token_file, "--token-file")
    targets = list(_targets(options))
    if not targets:
        raise UsageError("say where it acts: --slurm, --kubernetes or --webhook URL")
    log, say = AuditLog(options.audit), partial(print, flush=True)
    actor = Actor(NodeEvidence(prometheus, longest), targets, limits, log, options.for_real, say)
    with open_tcp(options.listen_address, "--listen-address") as listening:
        names = " and ".join(each.name for each in targets)
        how = "for real" if options.for_real else "as a dry run"
        say(f"listens on {options.listen_address}; acts on {names}, {how}")
        serve(actor, listening, token)
    return 0


def _targets(options: argparse.Namespace) -> Iterator[Target]:
    if options.taint and options.kubernetes is None:
        raise UsageError("--kubernetes.taint needs --kubernetes")
    reached = Access(options.target_http)
    reached.read()  # What is wrong with it is said before anything is done.
    if options.slurm:
        yield Slurm()
    if options.kubernetes is not None:
        account = ServiceAccount() if options.kubernetes == OF_THIS_POD else reached
        account.read()
        yield Kubernetes(options.kubernetes, account, options.taint)
    if options.webhook is not None:
        yield WebhookTarget(options.webhook, reached)
