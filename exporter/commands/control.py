"""`rankskew control`: change how much the probes of a running job time."""

from collections.abc import Sequence
from typing import Final

from exporter.commands.arguments import Parser, add_json
from exporter.operator import client
from exporter.operator.orders import Order
from rank_probe.wire.document import as_document
from rank_probe.wire.snapshot import LEVELS

EXAMPLES: Final = """\
rankskew control llama off                # every rank of the job on this node
rankskew control llama detail --rank 3    # one of them: write every step to a trace"""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew control",
        description="Change what the probes of a running job's ranks on this node time: nothing "
        "except a heartbeat (off), the stages (stages), or also every step, written to a trace "
        "file (detail).",
        examples=EXAMPLES,
    )
    options.add_argument("job_id")
    options.add_argument("level", choices=LEVELS)
    options.add_argument("--rank", type=int, help="only this rank (default: all on this node)")
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
