"""`rankskew files`: write the rules, runbooks and dashboards that come with the code."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from exporter.commands.arguments import Parser, add_json
from rank_probe.wire.document import as_document
from rankskew.files.explore import SOURCES, VARIABLES
from rankskew.files.next_steps import next_steps
from rankskew.files.write import RULERS, RuleFormat, write_files

EXAMPLES: Final = """\
rankskew files /etc/prometheus/rankskew
rankskew files /etc/prometheus/rankskew --overwrite    # after an upgrade
rankskew files /etc/vmalert/rankskew --vmalert
rankskew files rankskew --logs LOKI_UID '{node="$node"} |= "rank $rank"'"""


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
    for kind, source in SOURCES.items():
        options.add_argument(
            f"--{kind}",
            nargs=2,
            metavar=("UID", "QUERY"),
            help=f"link the dashboard of a rank to this {source.type} data source of Grafana; the "
            f"query may name {', '.join(f'${each}' for each in VARIABLES)}",
        )
    add_json(options, "directory, files (those written) and rule_files (what to load)")
    return options


def run(arguments: Sequence[str]) -> int:
    """Write what an operator needs in addition to the exporter: rules, runbooks, dashboards."""
    options = parser().parse_args(arguments)
    wanted = RuleFormat(options.vmalert, options.ruler)
    links = {kind: given for kind in SOURCES if (given := getattr(options, kind)) is not None}
    written = write_files(options.directory, options.overwrite, wanted, links)
    directory = options.directory.resolve()
    rules = f"{directory}/alerts/rules/*.yaml"
    if options.json:
        files = [str(path) for path in written]
        said = {"directory": str(directory), "files": files, "rule_files": [rules]}
        print(as_document("files", said))
        return 0
    print(f"{len(written)} files written to {options.directory}")
    ruler = "vmalert" if options.vmalert else options.ruler or "prometheus"
    print(next_steps(directory, rules, ruler))
    return 0
