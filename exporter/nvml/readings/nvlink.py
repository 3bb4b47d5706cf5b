"""A GPU's NVLinks: how many are up, their traffic, and their errors."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pynvml

from exporter.nvml.calls import UNSUPPORTED
from exporter.nvml.readings.fields import Field, FieldValues, field_values
from exporter.nvml.readings.query import Ask
from exporter.past import Sum

# Bytes are scraped every 15 s or so; the links' states are five values per link.
BYTES_EVERY_SECONDS: Final = 5.0
LINKS_EVERY_SECONDS: Final = 30.0
# nvml.h: the scope that means the sum over all links.
ALL_LINKS: Final = 0xFFFFFFFF
BYTES_PER_KIBIBYTE: Final = 1024

# For each direction, the byte counters to try in order. nvml.h has KiB of payload for those up to
# NVLink 4, and bytes for NVLink 5.
TRANSMIT: Final = (
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, BYTES_PER_KIBIBYTE),
    (pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, 1),
)
RECEIVE: Final = (
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, BYTES_PER_KIBIBYTE),
    (pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, 1),
)
BYTE_FIELDS: Final = tuple((field, ALL_LINKS) for field, _ in (*TRANSMIT, *RECEIVE))
# Every value of the label `type`: its fields to try in order, and the counters of older drivers.
# From NVLink 5 on (Blackwell), only recoveries are counted.
ERRORS: Final = {
    "replay": (
        (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,),
        (pynvml.NVML_NVLINK_ERROR_DL_REPLAY,),
    ),
    "recovery": (
        (
            pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
            pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
        ),
        (pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,),
    ),
    "crc": (
        (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,),
        (pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT, pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA),
    ),
}
# Links that are down or have errors have a series each, but only the worst: a card without a
# bridge has all of its links down.
SHOWN_LINKS: Final = 2


class NvLink:
    """Reads the links of one GPU every few seconds; returns nothing for a GPU without links."""

    def __init__(self) -> None:
        self._ask: Ask | None = None
        self._links_due = self._bytes_due = 0.0
        self._of_links: dict[str, Any] = {}
        self._of_bytes: dict[str, Any] = {}
        self._links: tuple[int, ...] = ()
        self._up: tuple[int, ...] = ()
        self._link_fields = FieldValues()
        self._byte_fields = BYTE_FIELDS
        self._sums: dict[str, Sum] = {}
        # Whether the errors of each type are those of its fields: the counters count the same.
        self._is_of_fields: dict[str, bool] = {}

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        """Return the readings, at most some seconds old; raises the errors of *ask*."""
        if ask is not self._ask:
            self._ask, self._links_due, self._bytes_due = ask, 0.0, 0.0
        if now >= self._links_due:
            self._of_links = self._read_links(ask, now)
            self._links_due = now + (LINKS_EVERY_SECONDS if self._of_links else 0.0)
        if self._of_links and now >= self._bytes_due:
            counts = ask(byte_counts, self._byte_fields)
            self._of_bytes = self._told_bytes(counts or {})
            self._bytes_due = now + (0.0 if counts is None else BYTES_EVERY_SECONDS)
        return self._of_links and self._of_links | self._of_bytes

    def _read_links(self, ask: Ask, now: float) -> dict[str, Any]:
        states = {link: ask(link_state, link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)}
        links = tuple(link for link in states if ask.supports(link_state, link))
        if not links or any(states[link] is None for link in links):
            return {}
        up = tuple(link for link in links if states[link] == pynvml.NVML_FEATURE_ENABLED)
        if (links, up) != (self._links, self._up):  # A new link may have values the others lacked.
            self._links, self._up = links, up
            self._link_fields = FieldValues()
        self._byte_fields = BYTE_FIELDS
        values = self._link_fields.read(ask, now, _fields(links))
        errors, by_link = self._errors(ask, values)
        shown = _worst(links, up, by_link)
        return {
            "nvlink_links": len(links),
            "nvlink_links_up": len(up),
            "nvlink_errors": errors or None,
            "nvlink_link_errors": {str(n): by_link[n] for n in shown if n in up} or None,
            "nvlink_link_states": {str(n): states[n] for n in shown if n not in up} or None,
            "nvlink_link_recoveries": {str(n): self._sum(f"recovery {n}").total for n in links},
        }

    def _told_bytes(self, counts: dict[Field, int | float]) -> dict[str, Any]:
        self._byte_fields = tuple(counts) or BYTE_FIELDS  # Skip the others for now.
        return {
            "nvlink_transmit_bytes": self._bytes("transmit", TRANSMIT, counts),
            "nvlink_receive_bytes": self._bytes("receive", RECEIVE, counts),
        }

    def _bytes(
        self, name: str, sources: Sequence[tuple[int, int]], counts: dict[Field, int | float]
    ) -> int | None:
        for field, times in sources:
            count = counts.get((field, ALL_LINKS))
            if count is not None:
                return self._sum(name).add({field: int(count) * times})
        return None

    def _errors(
        self, ask: Ask, values: dict[Field, int | float]
    ) -> tuple[dict[str, int], dict[int, int]]:
        """Return the errors of each type that is counted on all links, and of all types by link."""
        errors, by_link = {}, dict.fromkeys(self._links, 0)
        for kind, (fields, counters) in ERRORS.items():
            counts = of_fields = _of_first_field(fields, values)
            if not self._is_of_fields.get(kind, bool(of_fields)):
                counts = self._of_counters(ask, counters)
            if counts:
                self._is_of_fields.setdefault(kind, counts is of_fields)
                errors[kind] = self._sum(kind).add(counts)
            for link in self._links:
                of_link = {key: count for key, count in counts.items() if key[0] == link}
                by_link[link] += self._sum(f"{kind} {link}").add(of_link)
        return errors, by_link

    def _of_counters(self, ask: Ask, counters: Sequence[int]) -> dict[tuple[int, int], int]:
        questions = [(link, counter) for link in self._links for counter in counters]
        answers = {
            (link, counter): ask(pynvml.nvmlDeviceGetNvLinkErrorCounter, link, counter)
            for link, counter in questions
        }
        return {question: count for question, count in answers.items() if count is not None}

    def _sum(self, name: str) -> Sum:
        return self._sums.setdefault(name, Sum())


def link_state(handle: object, link: int) -> int:
    """Return whether *link* is up (NVML_FEATURE_ENABLED); pynvml.NVMLError: no link."""
    try:
        return int(pynvml.nvmlDeviceGetNvLinkState(handle, link))
    except pynvml.NVMLError_InvalidArgument:  # More links than this driver knows.
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED) from None


def byte_counts(handle: object, fields: Sequence[Field]) -> dict[Field, int | float]:
    """Return those of *fields* that have a value now.

    No link at all is not a failure, which would be cached for an hour: links come up in seconds.
    """
    try:
        answers = field_values(handle, fields)
    except pynvml.NVMLError as error:
        if error.value in UNSUPPORTED:
            return {}
        raise
    return {field: count for field, count in answers.items() if count is not None}


def _fields(links: Sequence[int]) -> list[Field]:
    errors = [field for fields, _ in ERRORS.values() for field in fields]
    return [(field, link) for field in errors for link in links]


def _of_first_field(
    fields: Sequence[int], values: dict[Field, int | float]
) -> dict[tuple[int, int], int]:
    """Return the counts of the first of *fields* that any link has, by link and field."""
    for field in fields:
        counts = {(link, f): int(count) for (f, link), count in values.items() if f == field}
        if counts:
            return counts
    return {}


def _worst(links: Sequence[int], up: Sequence[int], errors: Mapping[int, int]) -> list[int]:
    """Return the few links that are down or have most errors, by number."""
    bad = [link for link in links if link not in up or errors[link]]
    return sorted(sorted(bad, key=lambda link: (link in up, -errors[link]))[:SHOWN_LINKS])
