"""`rankskew control`: change how much the probes of a running job time."""

from collections.abc import Sequence

from exporter.commands.arguments import Parser
from exporter.operator.control_command import control_endpoint, give_order
from exporter.operator.orders import Order
from rank_probe.snapshot import LEVELS


def run(arguments: Sequence[str]) -> int:
    """Change how much the probes of a job's ranks on this node time."""
    parser = Parser(
        prog="rankskew control",
        description="Change what the probes of a running job's ranks on this node time: nothing "
        "except a heartbeat (off), the stages (stages), or also every step, written to a trace "
        "file (detail).",
        allow_abbrev=False,
    )
    parser.add_argument("job_id")
    parser.add_argument("level", choices=LEVELS)
    parser.add_argument("--rank", type=int, help="only this rank (default: all on this node)")
    parser.add_argument(
        "--endpoint",
        default=control_endpoint(),
        help="the exporter's --operator.socket, or for ranks of your own where they push "
        "(default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    print(give_order(Order(options.job_id, options.level, options.rank), options.endpoint))
    return 0
