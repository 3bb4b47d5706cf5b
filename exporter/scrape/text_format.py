"""The text formats of Prometheus and of OpenMetrics, for counters and gauges, written fast.

prometheus_client checks each label name of each series by regular expression, at every scrape: two
thirds of what a scrape costs. Its own encoder is the reference that a test compares with, and
writes what is neither counter nor gauge.
"""

from collections.abc import Iterable
from typing import Final

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics_format
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

END: Final = "# EOF\n"
# Up to here Go, whose form this is, and Python write a number alike.
SAME_IN_GO: Final = 1e6

Labels = tuple[tuple[str, str], ...]


def encode(families: Iterable[Metric], openmetrics: bool) -> bytes:
    """Return the page with *families*, in OpenMetrics or in the older text format."""
    parts: list[str] = []
    # Those of one rank or GPU are the same in many families.
    seen: dict[Labels, str] = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if _is_plain(family, name):
            # A counter is called as its samples are in one format, without _total in the other.
            parts.append(_head(family, family.name if openmetrics else name, openmetrics))
            parts += _series(family.samples, name, seen)
        else:
            parts.append(_by_reference(family, openmetrics))
    if openmetrics:
        parts.append(END)
    return "".join(parts).encode()


def _is_plain(family: Metric, name: str) -> bool:
    """Whether *family* is a counter or gauge whose samples have a name, labels and a value only."""
    return (
        family.type in ("counter", "gauge")
        and not family.unit
        and all(
            sample[0] == name and sample[3] is None and sample[4] is None
            for sample in family.samples
        )
    )


def _head(family: Metric, called: str, openmetrics: bool) -> str:
    text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        text = text.replace('"', r"\"")
    return f"# HELP {called} {text}\n# TYPE {called} {family.type}\n"


def _series(samples: Iterable[Sample], name: str, seen: dict[Labels, str]) -> list[str]:
    lines = []
    for sample in samples:
        key = tuple(sample.labels.items())
        labels = seen.get(key)
        if labels is None:
            labels = seen[key] = _labels(key)
        number = float(sample.value)
        if -SAME_IN_GO < number < SAME_IN_GO:
            lines.append(f"{name}{labels} {number!r}\n")
        else:
            lines.append(f"{name}{labels} {_in_go(number)}\n")
    return lines


def _in_go(number: float) -> str:
    text: str = floatToGoString(number)  # type: ignore[no-untyped-call] # upstream
    return text


def _labels(labels: Labels) -> str:
    pairs = [f'{name}="{_escaped(value)}"' for name, value in sorted(labels)]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _by_reference(family: Metric, openmetrics: bool) -> str:
    only = _Only(family)
    if not openmetrics:
        return generate_latest(only).decode()
    page: bytes = openmetrics_format.generate_latest(only)  # type: ignore[no-untyped-call] # upstream
    return page.decode().removesuffix(END)


class _Only(Collector):
    """One family, as prometheus_client's encoders take it."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> list[Metric]:
        return [self._family]
