"""`rankskew control`: what the probes of a running job measure, and who has the GPUs."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Final

from exporter import durations
from exporter.commands.arguments import Parser, add_json, interval
from exporter.errors import UsageError
from exporter.operator import client
from exporter.operator.orders import RELEASE_SECONDS, Order
from rank_probe.wire.document import as_document
from rank_probe.wire.snapshot import LEVELS

EXAMPLES: Final = """\
rankskew control llama off                # every rank of the job on this node
rankskew control llama detail --rank 3    # one of them: write every step to a trace
rankskew control --release-gpus --for 30m && nvidia-smi --gpu-reset -i 3
rankskew control --resume-gpus"""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew control",
        description="Set what the probes of a running job's ranks on this node measure: nothing "
        "except a heartbeat (off), the stages (stages), or also every step, written to a trace "
        "file (detail). Or, as root, make the exporter of this node close the GPUs, so that they "
        "can be reset or reconfigured or their driver reloaded.",
        examples=EXAMPLES,
    )
    options.add_argument("job_id", nargs="?", help="the job")
    options.add_argument("level", nargs="?", choices=LEVELS, help="what its probes measure")
    options.add_argument("--rank", type=int, help="only this rank (default: all on this node)")
    gpus = options.add_mutually_exclusive_group()
    gpus.add_argument("--release-gpus", action="store_true", help="close the GPUs for a while")
    gpus.add_argument("--resume-gpus", action="store_true", help="read the GPUs again")
    options.add_argument(
        "--for",
        dest="seconds",
        metavar="DURATION",
        type=interval,
        help="time after which --release-gpus ends by itself (default: "
        f"{durations.show(RELEASE_SECONDS)})",
    )
    options.add_argument(
        "--exporter",
        metavar="URL",
        help="the exporter's --operator.socket, or for ranks of your own where they push "
        "(default: the one of this node that you may open)",
    )
    add_json(options, "the order, and in ranks how many ranks it applies to")
    return options


def run(arguments: Sequence[str]) -> int:
    """Give the order; return 0 once it is taken, or the GPUs are closed."""
    options = parser().parse_args(arguments)
    done, sentence = _gpus(options) if _is_on_gpus(options) else _probes(options)
    print(as_document("control", done) if options.json else sentence)
    return 0


def _is_on_gpus(options: argparse.Namespace) -> bool:
    """Return whether *options* are about the GPUs; raises UsageError if they are about neither."""
    if options.seconds is not None and not options.release_gpus:
        raise UsageError("--for needs --release-gpus")
    if not (options.release_gpus or options.resume_gpus):
        if options.level is None:
            raise UsageError(
                "give a job and a level, --release-gpus or --resume-gpus; see rankskew control "
                "--help"
            )
        return False
    if options.job_id is not None or options.rank is not None:
        raise UsageError("the GPUs are those of the node: leave out the job, the level and --rank")
    return True


def _probes(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return what was done, for scripts and as a sentence."""
    order = Order(options.job_id, options.level, options.rank)
    ranks = client.control(order, options.exporter or client.control_endpoint())
    who = "1 rank" if ranks == 1 else f"{ranks} ranks"
    return (
        {"job_id": order.job_id, "level": order.level, "rank": order.rank, "ranks": ranks},
        f"{who} of job {order.job_id!r} on this node: level {order.level} within about a second",
    )


def _gpus(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    endpoint = options.exporter or client.operator_endpoint()
    if options.resume_gpus:
        client.resume(endpoint)
        return {"gpus": "resume"}, "the exporter reads the GPUs again within seconds"
    seconds = options.seconds or RELEASE_SECONDS
    client.release(seconds, endpoint, _say)
    return {"gpus": "release", "seconds": seconds}, (
        f"the exporter has closed the GPUs for {durations.show(seconds)}: reset or reconfigure "
        "them, then run rankskew control --resume-gpus"
    )


def _say(sentence: str) -> None:
    print(f"rankskew: {sentence}", file=sys.stderr, flush=True)
