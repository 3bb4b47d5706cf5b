"""The links of one GPU; healthy and sick ones through the real bindings are in two_gpus.txt."""

from typing import Any

import pynvml

from exporter.nvml.readings.fields import Field
from exporter.nvml.readings.nvlink import (
    ALL_LINKS,
    BYTES_EVERY_SECONDS,
    LINKS_EVERY_SECONDS,
    NvLink,
)
from tests.exporter.nvml.driver import TIMES_OUT, Driver, Fails, FieldAnswer, fields

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

    def __init__(self, *states: int, told: dict[Field, FieldAnswer] | None = None, **answers: Any):
        self.states = dict(enumerate(states))
        self.told = told or {}
        super().__init__(
            nvmlDeviceGetNvLinkState=self.state, nvmlDeviceGetFieldValues=fields(self.told)
        )
        self.answers |= answers
        self._opened = self.opened()
        self._part = NvLink()
        self._now = 0.0

    def state(self, handle: object, link: int) -> int:
        if link in self.states:
            return self.states[link]
        # An older driver calls the number of a link that it does not know invalid.
        raise Fails(pynvml.NVML_ERROR_INVALID_ARGUMENT if link > 3 else Fails().code)

    def set_each(self, field: int, *values: int) -> None:
        """Let the links tell *values*, from link 0 on."""
        self.told |= {(field, link): value for link, value in enumerate(values)}

    def read(self, after_seconds: float = LINKS_EVERY_SECONDS) -> dict[str, Any]:
        self._now += after_seconds
        return self._part.read(self._opened, self._now)


def test_gpu_without_nvlink_tells_nothing_and_is_asked_once() -> None:
    """A GPU on PCIe alone has no series of NVLink, nor a call a second for them."""
    gpu = Links()

    assert [gpu.read(1.0) for _ in range(10)] == [{}] * 10
    assert set(gpu.asked) == {"link_state", "nvmlDeviceGetNvLinkState"}
    assert gpu.asked["link_state"] == pynvml.NVML_NVLINK_MAX_LINKS


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


def test_errors_go_on_where_a_link_is_gone_or_begins_anew() -> None:
    """Neither the sum nor a link's own series falls, which would look like many errors."""
    gpu = Links(1, 1)
    told = []
    for values in ((1000, 50), (1001,), (1002, 0), (1002, 3)):
        gpu.states[1] = int(len(values) > 1)
        gpu.told.clear()
        gpu.set_each(CRC, *values)
        gpu.set_each(REPLAY, *values[1:])
        reading = gpu.read()
        told.append((reading["nvlink_errors"]["crc"], reading["nvlink_link_errors"].get("1")))

    assert told == [(1050, 50), (1051, None), (1052, 50), (1055, 53)]


def test_links_of_nvlink_5_are_told_by_their_own_fields() -> None:
    """A Blackwell counts bytes and recoveries under other numbers, and the other errors not."""
    gpu = Links(1, 1, told={SENT_5: 3, RECEIVED_5: 5})
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
    gpu = Links(1, told={SENT: 1, RECEIVED: 2})
    gpu.set_each(CRC, 3)
    told = [gpu.read()]
    gpu.states[0] = 0
    gpu.told[SENT] = 4
    gpu.set_each(CRC, 4)
    pauses = (BYTES_EVERY_SECONDS - 0.1, 0.1, LINKS_EVERY_SECONDS - BYTES_EVERY_SECONDS)
    told += [gpu.read(pause) for pause in pauses]

    assert [each["nvlink_transmit_bytes"] for each in told] == [1024, 1024, 4096, 4096]
    assert [each["nvlink_links_up"] for each in told] == [1, 1, 1, 0]
    assert [each["nvlink_errors"]["crc"] for each in told] == [3, 3, 3, 4]
    assert (gpu.asked["byte_counts"], gpu.asked["field_values"]) == (3, 2)


def test_bytes_refused_for_a_while_are_back_soon() -> None:
    """While all links retrain, or a call times out; that is not cached for an hour."""
    gpu = Links(1, told={SENT: 1, RECEIVED: 2})
    gpu.read()
    gpu.told.clear()
    gone = gpu.read(BYTES_EVERY_SECONDS)
    gpu.told |= {SENT: 3, RECEIVED: 2}
    assert (gone["nvlink_links"], gone["nvlink_transmit_bytes"]) == (1, None)
    assert gpu.read(BYTES_EVERY_SECONDS)["nvlink_transmit_bytes"] == 3 * 1024

    gpu.answers["byte_counts"] = TIMES_OUT
    assert gpu.read(BYTES_EVERY_SECONDS)["nvlink_receive_bytes"] is None
    del gpu.answers["byte_counts"]
    assert gpu.read(1.0)["nvlink_receive_bytes"] == 2048


def test_failure_that_passes_is_no_reading_and_no_lost_link() -> None:
    """A timeout takes the series for a moment, and does not make a GPU of 17 links."""
    gpu = Links(1, 1)
    gpu.read()
    gpu.answers["link_state"] = TIMES_OUT
    assert gpu.read() == {}
    del gpu.answers["link_state"]

    assert gpu.read(1.0)["nvlink_links"] == 2
