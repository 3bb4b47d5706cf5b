"""The links of one GPU; healthy and sick ones through the real bindings are in two_gpus.txt."""

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.nvml.readings.fields import Field
from exporter.nvml.readings.nvlink import (
    ALL_LINKS,
    BYTE_FIELDS,
    BYTES_EVERY_SECONDS,
    LINKS_EVERY_SECONDS,
    NvLink,
    byte_counts,
    link_state,
)
from tests.exporter.nvml.driver import Driver, Fails

REPLAY, RECOVERY, CRC = (
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
)
SENT = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS)
RECEIVED = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS)
SENT_5 = (pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, ALL_LINKS)
RECEIVED_5 = (pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, ALL_LINKS)


class Links(Driver):
    """A GPU with *states* of its links, and *fields* that it can tell; read every few seconds."""

    def __init__(self, *states: int, fields: dict[Field, int] | None = None, **answers: Any):
        super().__init__(link_state=self.state, field_values=self.tell, byte_counts=self.tell_bytes)
        self.answers |= answers
        self.states = dict(enumerate(states))
        self.fields = fields or {}
        self._opened = self.opened()
        self._part = NvLink()
        self._now = 0.0

    def state(self, handle: object, link: int) -> int:
        if link not in self.states:
            raise Fails
        return self.states[link]

    def tell(self, handle: object, fields: Sequence[Field]) -> dict[Field, int | None]:
        return {field: self.fields.get(field) for field in fields}

    def tell_bytes(self, handle: object, fields: Sequence[Field]) -> dict[Field, int]:
        return {field: self.fields[field] for field in fields if field in self.fields}

    def set_each(self, field: int, *values: int) -> None:
        """Let the links tell *values*, from link 0 on."""
        self.fields |= {(field, link): value for link, value in enumerate(values)}

    def read(self, after_seconds: float = LINKS_EVERY_SECONDS) -> dict[str, Any]:
        self._now += after_seconds
        return self._part.read(self._opened, self._now)


def test_gpu_without_nvlink_tells_nothing_and_is_asked_once() -> None:
    """A GPU on PCIe alone has no series of NVLink, nor a call a second for them."""
    gpu = Links()

    assert [gpu.read(1.0) for _ in range(10)] == [{}] * 10
    assert gpu.asked == {"link_state": pynvml.NVML_NVLINK_MAX_LINKS}


def test_links_are_told_all_together() -> None:
    """Bytes are of all links at once and in bytes; errors are added up over the links."""
    gpu = Links(1, 1, 1, fields={SENT: 3, RECEIVED: 5, SENT_5: 999})
    gpu.set_each(REPLAY, 0, 0, 0)
    gpu.set_each(RECOVERY, 1, 0, 2)
    gpu.set_each(CRC, 0, 10, 100)

    assert gpu.read() == {
        "nvlink_links": 3,
        "nvlink_links_up": 3,
        "nvlink_transmit_bytes": 3 * 1024,
        "nvlink_receive_bytes": 5 * 1024,
        "nvlink_errors": {"replay": 0, "recovery": 3, "crc": 110},
        "nvlink_link_errors": {"1": 10, "2": 102},
        "nvlink_link_states": None,
    }


def test_worst_links_are_told_one_by_one() -> None:
    """Those that are down come first, then those with most errors; healthy ones are not told."""
    gpu = Links(*[1] * 6)
    gpu.set_each(CRC, 0, 7, 0, 90, 8, 0)
    told = []
    for down in ({}, {0: 0}, {3: 0, 5: 0}):
        gpu.states |= down
        reading = gpu.read()
        told.append((reading["nvlink_link_errors"], reading["nvlink_link_states"]))

    assert told == [({"3": 90, "4": 8}, None), ({"3": 90}, {"0": 0}), (None, {"0": 0, "3": 0})]


def test_errors_of_one_link_go_on_after_it_retrains() -> None:
    """Its counters begin anew: the series does not fall, and what they have counted goes in."""
    gpu = Links(1, 1)
    told = []
    for replays, checksums in ((5, 100), (0, 3), (2, 3)):
        gpu.set_each(REPLAY, 0, replays)
        gpu.set_each(CRC, 0, checksums)
        told.append(gpu.read()["nvlink_link_errors"]["1"])

    assert told == [105, 108, 110]


def test_sum_of_errors_goes_on_where_a_link_is_gone_or_begins_anew() -> None:
    """A link that is down or retrains causes no drop, which would look like many errors."""
    gpu = Links(1, 1)

    def crc(*values: int) -> Any:
        gpu.states[1] = int(len(values) > 1)
        gpu.fields.clear()
        gpu.set_each(CRC, *values)
        return gpu.read()["nvlink_errors"]["crc"]

    assert [crc(1000, 50), crc(1001), crc(1002, 0), crc(1002, 3)] == [1050, 1051, 1052, 1055]


def test_links_of_nvlink_5_are_told_by_their_own_fields() -> None:
    """A Blackwell counts bytes and recoveries under other numbers, and the other errors not."""
    gpu = Links(1, 1, fields={SENT_5: 3, RECEIVED_5: 5})
    gpu.set_each(pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, 1, 1)
    told = gpu.read()

    assert (told["nvlink_transmit_bytes"], told["nvlink_receive_bytes"]) == (3, 5)
    assert told["nvlink_errors"] == {"recovery": 2}


def test_errors_of_older_drivers_are_read_link_by_link() -> None:
    """Where there are no fields the counters are asked; both kinds of checksum are one."""
    counters = [1, 10, 100, 1000]
    gpu = Links(1, 1, nvmlDeviceGetNvLinkErrorCounter=lambda _, link, counter: counters[counter])

    assert gpu.read()["nvlink_errors"] == {"replay": 2, "recovery": 20, "crc": 2200}


def test_nothing_is_counted_where_the_driver_counts_nothing() -> None:
    """No counter means no series, instead of 0."""
    told = Links(1).read()

    assert told["nvlink_links"] == 1
    assert told["nvlink_errors"] is None
    assert told["nvlink_transmit_bytes"] is None


def test_links_are_read_every_few_seconds_and_bytes_more_often() -> None:
    """Between two readings the last one is returned; only fields with a value are read again."""
    gpu = Links(1, fields={SENT: 1, RECEIVED: 2})
    gpu.set_each(CRC, 3)
    told = [gpu.read()]
    gpu.states[0] = 0
    gpu.fields[SENT] = 4
    gpu.set_each(CRC, 4)
    pauses = (BYTES_EVERY_SECONDS - 0.1, 0.1, LINKS_EVERY_SECONDS - BYTES_EVERY_SECONDS)
    told += [gpu.read(pause) for pause in pauses]

    assert [each["nvlink_transmit_bytes"] for each in told] == [1024, 1024, 4096, 4096]
    assert [each["nvlink_links_up"] for each in told] == [1, 1, 1, 0]
    assert [each["nvlink_errors"]["crc"] for each in told] == [3, 3, 3, 4]
    assert (gpu.asked["byte_counts"], gpu.asked["field_values"]) == (3, 2)


def test_bytes_refused_for_a_while_are_back_soon() -> None:
    """While all links retrain, or a call times out; that is not cached for an hour."""
    gpu = Links(1, fields={SENT: 1, RECEIVED: 2})
    gpu.read()
    gpu.fields = {}
    gone = gpu.read(BYTES_EVERY_SECONDS)
    gpu.fields = {SENT: 3, RECEIVED: 2}
    assert (gone["nvlink_links"], gone["nvlink_transmit_bytes"]) == (1, None)
    assert gpu.read(BYTES_EVERY_SECONDS)["nvlink_transmit_bytes"] == 3 * 1024

    gpu.fail("byte_counts", code=pynvml.NVML_ERROR_TIMEOUT)
    assert gpu.read(BYTES_EVERY_SECONDS)["nvlink_receive_bytes"] is None
    gpu.answers["byte_counts"] = gpu.tell_bytes
    assert gpu.read(1.0)["nvlink_receive_bytes"] == 2048


@pytest.mark.parametrize(
    ("code", "raises"),
    [(pynvml.NVML_ERROR_NOT_SUPPORTED, False), (pynvml.NVML_ERROR_TIMEOUT, True)],
)
def test_no_bytes_at_all_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, code: int, raises: bool
) -> None:
    """A GPU that refuses all of these fields has nothing to count now; a timeout is a failure."""
    entry = SimpleNamespace(nvmlReturn=code)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda _, fields: [entry] * len(fields))

    with pytest.raises(pynvml.NVMLError) if raises else nullcontext():
        assert byte_counts("handle", BYTE_FIELDS) == {}


def test_failure_that_passes_is_no_reading_and_no_lost_link() -> None:
    """A timeout takes the series for a moment, and does not make a GPU of 17 links."""
    gpu = Links(1, 1)
    gpu.read()
    gpu.fail("link_state", code=pynvml.NVML_ERROR_TIMEOUT)
    assert gpu.read() == {}
    gpu.answers["link_state"] = gpu.state

    assert gpu.read(1.0)["nvlink_links"] == 2


def test_link_beyond_what_the_driver_knows_is_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older driver calls the number of such a link invalid."""

    def refuse(handle: object, link: int) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetNvLinkState", refuse)
    with pytest.raises(pynvml.NVMLError) as raised:
        link_state("handle", 20)

    assert raised.value.value == pynvml.NVML_ERROR_NOT_SUPPORTED
