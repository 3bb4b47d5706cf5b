"""Faults as they are asked for on the command line."""

from exporter import durations
from exporter.errors import UsageError
from fleet_simulator.faults.fault import PlantedFault
from fleet_simulator.faults.kinds import BY_NAME


def parse(text: str) -> PlantedFault:
    """Return the fault that *text* describes, as in `thermal:node=7,gpu=3,after=30s`.

    Raises UsageError for what is none.
    """
    name, _, places = text.partition(":")
    kind = BY_NAME.get(name)
    if kind is None:
        raise UsageError(f"there is no fault {name!r}; choose one of {', '.join(BY_NAME)}")
    options = dict(_option(text, part) for part in places.split(",") if part)
    after = options.pop("after", kind.begins_seconds)
    return PlantedFault(kind, int(options.pop("node", 0)), int(options.pop("gpu", 0)), after)


def _option(text: str, part: str) -> tuple[str, float]:
    name, _, value = part.partition("=")
    if name in ("node", "gpu") and value.isascii() and value.isdigit():
        return name, int(value)
    if name == "after":
        try:
            return name, durations.parse(value)
        except ValueError as error:
            raise UsageError(f"{text}: {error}") from error
    raise UsageError(f"{text}: expected KIND:node=I,gpu=J,after=30s, not {part!r}")
