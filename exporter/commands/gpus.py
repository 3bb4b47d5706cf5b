"""`rankskew gpus`: release the GPUs for a while, or forget those that were removed."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Final

from exporter import durations
from exporter.commands.arguments import Parser, add_json, interval
from exporter.operator.client import forget, operator_endpoint, release, resume
from rank_probe.wire.document import as_document

EXAMPLES: Final = """\
rankskew gpus release --for 30m && nvidia-smi --gpu-reset -i 3
rankskew gpus resume
rankskew gpus forget    # after a GPU was removed for good"""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew gpus",
        description="Run as root. Make the exporter of this node close the GPUs, so that they can "
        "be reset or reconfigured or their driver reloaded (release), read them again (resume), or "
        "no longer expect GPUs that were removed for good (forget).",
        examples=EXAMPLES,
    )
    options.add_argument("action", choices=("release", "resume", "forget"))
    options.add_argument(
        "--for",
        dest="seconds",
        metavar="DURATION",
        type=interval,
        default="10m",
        help="time after which a release ends by itself (default: %(default)s)",
    )
    options.add_argument(
        "--exporter",
        metavar="URL",
        default=operator_endpoint(),
        help="the exporter's --operator.socket (default: %(default)s)",
    )
    add_json(options, "action, and seconds (how long a release lasts) or forgotten (how many GPUs)")
    return options


def run(arguments: Sequence[str]) -> int:
    """Make the exporter release the GPUs for a while, or forget those that were removed."""
    options = parser().parse_args(arguments)
    done, sentence = _do(options)
    print(as_document("gpus", {"action": options.action} | done) if options.json else sentence)
    return 0


def _do(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return what was done, for scripts and as a sentence."""
    if options.action == "release":
        release(options.seconds, options.exporter, _say)
        return {"seconds": options.seconds}, (
            f"the exporter has closed the GPUs for {durations.show(options.seconds)}: reset or "
            "reconfigure them, then run rankskew gpus resume"
        )
    if options.action == "resume":
        resume(options.exporter)
        return {}, "the exporter reads the GPUs again within seconds"
    forgotten = forget(options.exporter)
    gpus = "1 GPU is" if forgotten == 1 else f"{forgotten} GPUs are"
    return {"forgotten": forgotten}, f"{gpus} no longer expected"


def _say(sentence: str) -> None:
    print(f"rankskew: {sentence}", file=sys.stderr, flush=True)
