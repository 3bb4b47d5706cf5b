"""docs/configuration.md: the flags of the exporter and the variables of the probe."""

from exporter.collectors.catalog import COLLECTORS
from exporter.settings import flags
from generators.listed.variables import VARIABLES
from generators.markdown import table


def flag_rows() -> list[tuple[str, str, str]]:
    """Return a row for every flag of `rankskew exporter`, in the order of its --help."""
    rows = [
        (f"`{flag.name}`", f"`{flag.show(setting.default)}`".replace("``", "empty"), flag.help)
        for setting, flag in flags()
    ]
    return rows + [(f"`--[no-]collector.{entry.name}`", "on", entry.help) for entry in COLLECTORS]


def page() -> str:
    """Return docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "The flags of `rankskew exporter`; `make docs` generates this page from the code.",
        "`--config.check`, with `--json` for scripts, "
        "[checks them](operating.md#check-the-settings).",
        "",
        table(("flag", "default", "meaning"), flag_rows()),
        "",
        "Environment variables of the training process configure the probe.",
        "",
        table(("variable", "default", "meaning"), VARIABLES),
    ]
    return "\n".join(lines) + "\n"
