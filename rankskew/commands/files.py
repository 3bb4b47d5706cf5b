"""`rankskew files`: write the rules, runbooks and dashboards that come with the code."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from exporter.bundle import PLACES, bundled
from exporter.commands.arguments import Parser
from exporter.errors import StartError, UsageError, reason

EXAMPLES: Final = """\
rankskew files /etc/prometheus/rankskew
rankskew files /etc/prometheus/rankskew --overwrite    # after an upgrade"""
NEXT_STEPS: Final = """\
1. Prometheus: load {0}/alerts/rules/*.yaml and scrape each node, as in {0}/deploy/prometheus/prometheus.yaml.
2. Alertmanager: add the inhibit_rules of {0}/alerts/alertmanager.yaml, so that one cause pages once.
3. Grafana: import {0}/dashboards/*.json."""  # noqa: E501 - three lines are printed


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
    return options


def run(arguments: Sequence[str]) -> int:
    """Write what an operator needs in addition to the exporter: rules, runbooks, dashboards."""
    options = parser().parse_args(arguments)
    written = write_files(options.directory, options.overwrite)
    print(f"{len(written)} files written to {options.directory}")
    print(NEXT_STEPS.format(options.directory.resolve()))
    return 0


def write_files(directory: Path, overwrite: bool = False) -> list[Path]:
    """Write everything bundled below *directory*; return the files.

    Unless *overwrite*, raises UsageError and writes nothing if a file exists and differs: it is
    somebody's work.
    """
    contents = {
        directory / name / source.relative_to(root): source.read_bytes()
        for name in PLACES
        for root in [bundled(name)]
        for source in (root, *sorted(root.glob("**/*")))
        if source.is_file()
    }
    try:
        for path, content in contents.items():
            if not overwrite and path.is_file() and path.read_bytes() != content:
                raise UsageError(
                    f"{path} was changed: choose another directory, or add --overwrite"
                )
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            if content.startswith(b"#!"):
                path.chmod(0o755)  # A scheduler runs it.
    except OSError as error:
        raise StartError(f"cannot write {error.filename}: {reason(error)}") from error
    return list(contents)
