"""`rankskew control`: change how much the probes of a running job time."""

import argparse
from collections.abc import Sequence
from typing import Final

from exporter.commands.arguments import Parser, add_json
from exporter.commands.profile import profile
from exporter.errors import UsageError
from exporter.operator import client
from exporter.operator.orders import Order, ProfileOrder
from rank_probe.wire.document import as_document
from rank_probe.wire.snapshot import LEVELS

EXAMPLES: Final = """\
rankskew control llama off                # every rank of the job on this node
rankskew control llama detail --rank 3    # one of them: write every step to a trace
rankskew control --profile llama          # torch.profiler, on the late rank and on a healthy one
rankskew control --profile llama 3 --steps 5"""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew control",
        description="Change what the probes of a running job's ranks on this node time: nothing "
        "except a heartbeat (off), the stages (stages), or also every step, written to a trace "
        "file (detail). Or let torch.profiler record a few steps of two ranks, and compare them.",
        examples=EXAMPLES,
    )
    options.add_argument("job_id", nargs="?")
    options.add_argument("level", nargs="?", choices=LEVELS)
    options.add_argument("--rank", type=int, help="only this rank (default: all on this node)")
    options.add_argument(
        "--profile",
        nargs="+",
        metavar=("JOB", "RANK"),
        help="instead: let this rank (default: the costliest late one) and a healthy one of its "
        "group on this node write a torch.profiler trace of the same steps; docs/profile.md",
    )
    options.add_argument("--peer", type=int, help="with --profile: compare with this rank")
    options.add_argument("--steps", type=int, default=5, help="of a profile (default: 5)")
    options.add_argument("--start", type=int, help="of a profile: the first step; RANK alone")
    options.add_argument(
        "--exporter",
        metavar="URL",
        default=client.control_endpoint(),
        help="the exporter's --operator.socket, or for ranks of your own where they push "
        "(default: %(default)s)",
    )
    add_json(options, "job_id, level, rank, and in ranks how many ranks the order applies to")
    return options


def run(arguments: Sequence[str]) -> int:
    """Change how much the probes of a job's ranks on this node time."""
    options = parser().parse_args(arguments)
    if options.profile:
        return profile(_profile_order(options), options.exporter, as_json=options.json)
    if options.level is None:
        raise UsageError("the following arguments are required: job_id, level; or --profile JOB")
    order = Order(options.job_id, options.level, options.rank)
    ranks = client.control(order, options.exporter)
    if options.json:
        said = {"job_id": order.job_id, "level": order.level, "rank": order.rank, "ranks": ranks}
        print(as_document("control", said))
    else:
        who = "1 rank" if ranks == 1 else f"{ranks} ranks"
        print(
            f"{who} of job {order.job_id!r} on this node: level {order.level} within about a second"
        )
    return 0


def _profile_order(options: argparse.Namespace) -> ProfileOrder:
    job_id, *rank = options.profile
    try:
        late = int(*rank) if rank else None
        return ProfileOrder(job_id, late, options.peer, options.steps, options.start)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--profile takes JOB or JOB RANK, and --steps: {error}") from error
