"""`rankskew files`: write the rules, runbooks and dashboards that come with the code."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from exporter.commands.arguments import Parser, add_json
from rankskew.files.next_steps import next_steps
from rankskew.files.write import RULERS, RuleFormat, write_files

EXAMPLES: Final = """\
rankskew files /etc/prometheus/rankskew
rankskew files /etc/prometheus/rankskew --overwrite    # after an upgrade
rankskew files /etc/vmalert/rankskew --vmalert"""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew files",
        description="Write the alert rules, runbooks, Alertmanager configuration and dashboards, "
        "and print what to do with them.",
        examples=EXAMPLES,
    )
    options.add_argument(
        "directory", type=Path, help="target directory; created if missing, other files are kept"
    )
    options.add_argument("--overwrite", action="store_true", help="replace files that differ")
    options.add_argument(
        "--vmalert",
        action="store_true",
        help="write rules for vmalert before 1.92, which lacks keep_firing_for",
    )
    options.add_argument(
        "--ruler",
        choices=RULERS,
        help="write the rules in the form of a Thanos Ruler or of mimirtool",
    )
    add_json(options, "directory, files (those written) and rule_files (what to load)")
    return options


def run(arguments: Sequence[str]) -> int:
    """Write what an operator needs in addition to the exporter: rules, runbooks, dashboards."""
    options = parser().parse_args(arguments)
    wanted = RuleFormat(options.vmalert, options.ruler)
    written = write_files(options.directory, options.overwrite, wanted)
    directory = options.directory.resolve()
    rules = f"{directory}/alerts/rules/*.yaml"
    if options.json:
        files = [str(path) for path in written]
        said = {"directory": str(directory), "files": files, "rule_files": [rules]}
        print(json.dumps(said, indent=2))
        return 0
    print(f"{len(written)} files written to {options.directory}")
    ruler = "vmalert" if options.vmalert else options.ruler or "prometheus"
    print(next_steps(directory, rules, ruler))
    return 0
