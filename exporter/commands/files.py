"""`rankskew files`: write the rules, runbooks and dashboards that come with the code."""

from collections.abc import Sequence
from pathlib import Path

from exporter.bundle import write_files
from exporter.commands.arguments import Parser


def run(arguments: Sequence[str]) -> int:
    """Write what an operator needs in addition to the exporter: rules, runbooks, dashboards."""
    parser = Parser(
        prog="rankskew files",
        description="Write the alert rules, runbooks, Alertmanager configuration and dashboards, "
        "and print what to add to rule_files.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "directory", type=Path, help="target directory; created if missing, other files are kept"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that differ")
    parser.add_argument(
        "--vmalert",
        action="store_true",
        help="write rules for vmalert before 1.92, which lacks keep_firing_for",
    )
    options = parser.parse_args(arguments)
    written = write_files(options.directory, options.overwrite, options.vmalert)
    print(f"{len(written)} files written to {options.directory}")
    rules = f"{options.directory.resolve()}/alerts/rules/*.yaml"
    if options.vmalert:
        print(f"vmalert: add -rule='{rules}'")
    else:
        print(f"Prometheus: add {rules} to rule_files")
    return 0
