"""Metrics as the rows of a table: what is exposed of each GPU, rank, port or node, and its text."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Subject = TypeVar("Subject")
Family = CounterMetricFamily | GaugeMetricFamily
# *over* or *times* of a row whose reading is not in the metric's base unit.
PERCENT: Final = 100
MILLI: Final = 1_000
NANO: Final = 1_000_000_000
MEGA: Final = 1_000_000

# None: there is no reading, so there is no series.
Value = float | None
# By the value of a label, or by those of several.
ByLabel = Mapping[str, Value] | Mapping[tuple[str, ...], Value]
Read = Callable[[Subject], Value]


@dataclass(frozen=True, slots=True)
class Row(Generic[Subject]):
    """A metric: its *name* as exposed, which ends in _total if it is a counter, and its *help*.

    *read* returns the value for a subject; it is multiplied by *times* and divided by *over*. With
    *labels* besides those of the subject, *read* returns a value for each of their values, or maps
    each value of the one label to a function.
    """

    name: str
    help: str
    read: Read[Subject] | Callable[[Subject], ByLabel | None] | Mapping[str, Read[Subject]]
    labels: tuple[str, ...] = ()
    times: int = 1
    over: int = 1


def families(
    rows: Iterable[Row[Subject]],
    labels: Sequence[str],
    subjects: Sequence[tuple[Sequence[str], Subject]],
) -> Iterator[Family]:
    """Yield the family of each row, with the *subjects*, each after its values of *labels*."""
    for row in rows:
        is_counter = row.name.endswith("_total")
        kind: type[Family] = CounterMetricFamily if is_counter else GaugeMetricFamily
        family = kind(row.name, row.help, labels=[*labels, *row.labels])
        for values, reading in _readings(row, subjects):
            if reading is not None:
                family.add_metric(values, reading * row.times / row.over)
        yield family


def in_order(known: Mapping[str, float], keys: Iterable[str]) -> dict[str, float]:
    """Return what is *known* of these *keys*, in their order."""
    return {key: known[key] for key in keys if key in known}


def _readings(
    row: Row[Subject], subjects: Sequence[tuple[Sequence[str], Subject]]
) -> Iterator[tuple[Sequence[str], Value]]:
    if isinstance(row.read, Mapping):
        for label, read in row.read.items():
            yield from (([*who, label], read(subject)) for who, subject in subjects)
        return
    for who, subject in subjects:
        found = row.read(subject)
        if isinstance(found, Mapping):
            for key, value in found.items():
                yield [*who, *((key,) if isinstance(key, str) else key)], value
        else:
            yield who, found
