"""`rankskew gpus`: release the GPUs for a while, or forget those that were removed."""

from collections.abc import Sequence

from exporter.commands.arguments import Parser, duration
from exporter.operator.control_command import operator_endpoint
from exporter.operator.gpus_command import forget, release, resume


def run(arguments: Sequence[str]) -> int:
    """Make the exporter release the GPUs for a while, or forget those that were removed."""
    parser = Parser(
        prog="rankskew gpus",
        description="Run as root. Make the exporter of this node close the GPUs, so that they can "
        "be reset or reconfigured or their driver reloaded (release), read them again (resume), or "
        "no longer expect GPUs that were removed for good (forget).",
        allow_abbrev=False,
    )
    parser.add_argument("action", choices=("release", "resume", "forget"))
    parser.add_argument(
        "--for",
        dest="seconds",
        metavar="DURATION",
        type=duration,
        default="10m",
        help="time after which a release ends by itself (default: %(default)s)",
    )
    parser.add_argument(
        "--endpoint",
        default=operator_endpoint(),
        help="the exporter's --operator.socket (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.action == "release":
        print(release(options.seconds, options.endpoint))
    else:
        print({"resume": resume, "forget": forget}[options.action](options.endpoint))
    return 0
