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
    SPEED,
    NvLink,
    byte_counts,
    link_state,
)
from tests.exporter.nvml.driver import Driver, Fails
from tests.exporter.nvml.stub import PATIENT, Supervise, wait_for_sample

REPLAY, RECOVERY, CRC = (
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
)

SENT = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS)
RECEIVED = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS)


class FakeLinks(Driver):
    """A GPU with *states* of its links, and *fields* that it can tell."""

    def __init__(self, states: dict[int, int], **answers: Any) -> None:
        super().__init__(link_state=self.state, field_values=self.tell, byte_counts=self.tell_bytes)
        self.answers |= answers
        self.states = states
        self.fields: dict[Field, int] = {}

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


class Reads:
    """One GPU, read every few seconds."""

    def __init__(self, driver: Driver) -> None:
        self._ask = driver.opened()
        self._part = NvLink()
        self.now = 0.0

    def read(self, after_seconds: float = LINKS_EVERY_SECONDS) -> dict[str, Any]:
        self.now += after_seconds
        return self._part.read(self._ask, self.now)


def test_gpu_without_nvlink_tells_nothing_and_is_asked_once() -> None:
    """A GPU on PCIe alone has no series of NVLink, nor a call a second for them."""
    driver = FakeLinks({})
    gpu = Reads(driver)

    assert [gpu.read(1.0) for _ in range(10)] == [{}] * 10
    assert driver.asked == {"link_state": pynvml.NVML_NVLINK_MAX_LINKS}


def test_links_are_told_all_together() -> None:
    """Bytes are of all links at once and in bytes; errors are added up over the links."""
    driver = FakeLinks({0: 1, 1: 1, 2: 1})
    driver.fields = {
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS): 3,
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS): 5,
        (pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, ALL_LINKS): 999,
    }
    driver.set_each(SPEED, 26562, 26562, 26562)
    driver.set_each(REPLAY, 0, 0, 0)
    driver.set_each(RECOVERY, 1, 0, 2)
    driver.set_each(CRC, 0, 10, 100)

    assert Reads(driver).read() == {
        "nvlink_links": 3,
        "nvlink_links_up": 3,
        "nvlink_speed_min_megabytes_per_second": 26562,
        "nvlink_transmit_bytes": 3 * 1024,
        "nvlink_receive_bytes": 5 * 1024,
        "nvlink_errors": {"replay": 0, "recovery": 3, "crc": 110},
        "nvlink_link_errors": {"1": 10, "2": 102},
        "nvlink_link_states": None,
    }


def test_worst_links_are_told_one_by_one() -> None:
    """Those that are down come first, then those with most errors; healthy ones are not told."""
    driver = FakeLinks({link: 1 for link in range(6)})
    driver.set_each(CRC, 0, 7, 0, 90, 8, 0)
    gpu = Reads(driver)
    errors = gpu.read()
    driver.states[0] = 0
    one_down = gpu.read()
    driver.states |= {3: 0, 5: 0}
    three_down = gpu.read()

    assert (errors["nvlink_link_errors"], errors["nvlink_link_states"]) == ({"3": 90, "4": 8}, None)
    assert one_down["nvlink_link_errors"] == {"3": 90}
    assert one_down["nvlink_link_states"] == {"0": 0}
    assert three_down["nvlink_link_errors"] is None
    assert three_down["nvlink_link_states"] == {"0": 0, "3": 0}


def test_errors_of_one_link_go_on_after_it_retrains() -> None:
    """Its counters begin anew; the series must not fall."""
    driver = FakeLinks({0: 1, 1: 1})
    gpu = Reads(driver)
    told = []
    for replays, checksums in ((5, 100), (0, 3), (2, 3)):
        driver.set_each(REPLAY, 0, replays)
        driver.set_each(CRC, 0, checksums)
        told.append(gpu.read()["nvlink_link_errors"]["1"])

    assert told == [105, 105, 107]


def test_slowest_link_that_is_up_is_found_among_many() -> None:
    """One lane lost on one link of 18 shows; a link that is down has no speed."""
    driver = FakeLinks({link: 1 for link in range(18)} | {4: 0})
    driver.set_each(SPEED, *[26562] * 18)
    driver.fields[SPEED, 11] = 13281
    driver.fields |= {(SPEED, 4): 1, (SPEED, 5): 0}  # Down; and up, of unknown speed.
    told = Reads(driver).read()

    assert (told["nvlink_links"], told["nvlink_links_up"]) == (18, 17)
    assert told["nvlink_speed_min_megabytes_per_second"] == 13281


def test_links_of_nvlink_5_are_told_by_their_own_fields() -> None:
    """A Blackwell counts bytes and recoveries under other numbers, and the other errors not."""
    driver = FakeLinks({0: 1, 1: 1})
    driver.fields = {
        (pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, ALL_LINKS): 3,
        (pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, ALL_LINKS): 5,
    }
    driver.set_each(pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, 1, 1)
    told = Reads(driver).read()

    assert (told["nvlink_transmit_bytes"], told["nvlink_receive_bytes"]) == (3, 5)
    assert told["nvlink_errors"] == {"recovery": 2}
    assert told["nvlink_speed_min_megabytes_per_second"] is None


def test_errors_of_older_drivers_are_read_link_by_link() -> None:
    """Where there are no fields the counters are asked; both kinds of checksum are one."""

    def errors(handle: object, link: int, counter: int) -> int:
        return [1, 10, 100, 1000][counter]

    driver = FakeLinks({0: 1, 1: 1}, nvmlDeviceGetNvLinkErrorCounter=errors)

    assert Reads(driver).read()["nvlink_errors"] == {"replay": 2, "recovery": 20, "crc": 2200}


def test_nothing_is_counted_where_the_driver_counts_nothing() -> None:
    """No counter means no series, instead of 0."""
    told = Reads(FakeLinks({0: 1})).read()

    assert told["nvlink_links"] == 1
    assert told["nvlink_errors"] is None
    assert told["nvlink_transmit_bytes"] is None


def test_links_are_read_every_few_seconds() -> None:
    """Between two readings the last one is returned."""
    driver = FakeLinks({0: 1})
    driver.set_each(CRC, 3)
    gpu = Reads(driver)
    first = gpu.read()
    driver.states[0] = 0
    driver.set_each(CRC, 4)

    assert gpu.read(LINKS_EVERY_SECONDS - 0.1) == first
    later = gpu.read(0.1)
    assert (later["nvlink_links_up"], later["nvlink_errors"]) == (0, {"crc": 4})


def test_bytes_are_read_more_often_than_the_links() -> None:
    """A scrape finds new bytes; only the fields with a value are read for them."""
    driver = FakeLinks({0: 1})
    driver.fields = {SENT: 1, RECEIVED: 2}
    gpu = Reads(driver)
    seen = [gpu.read()["nvlink_transmit_bytes"]]
    driver.fields |= {SENT: 4}
    seen += [gpu.read(after)["nvlink_transmit_bytes"] for after in (BYTES_EVERY_SECONDS - 0.1, 0.1)]

    assert seen == [1024, 1024, 4096]
    assert driver.asked == {
        "link_state": pynvml.NVML_NVLINK_MAX_LINKS,
        "field_values": 1,
        "byte_counts": 2,
        "nvmlDeviceGetNvLinkErrorCounter": 4,
    }


def test_bytes_refused_for_a_while_are_back_soon() -> None:
    """While all links retrain there are no bytes; that is not cached for an hour."""
    driver = FakeLinks({0: 1})
    driver.fields = {SENT: 1, RECEIVED: 2}
    gpu = Reads(driver)
    gpu.read()
    driver.fields.clear()
    gone = gpu.read(BYTES_EVERY_SECONDS)
    driver.fields = {SENT: 3, RECEIVED: 2}

    assert (gone["nvlink_links"], gone["nvlink_transmit_bytes"]) == (1, None)
    assert gpu.read(BYTES_EVERY_SECONDS)["nvlink_transmit_bytes"] == 3 * 1024


def test_timeout_costs_the_bytes_one_reading() -> None:
    """They are asked for again the next time."""
    driver = FakeLinks({0: 1})
    driver.fields = {SENT: 1, RECEIVED: 2}
    gpu = Reads(driver)
    driver.answers["byte_counts"] = Fails(pynvml.NVML_ERROR_TIMEOUT)
    assert gpu.read()["nvlink_receive_bytes"] is None
    driver.answers["byte_counts"] = driver.tell_bytes

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


def test_sum_of_errors_goes_on_where_a_link_is_gone_or_begins_anew() -> None:
    """A link that is down or retrains causes no drop, which would look like many errors."""
    driver = FakeLinks({0: 1, 1: 1})
    gpu = Reads(driver)

    def crc(*values: int) -> Any:
        driver.states[1] = int(len(values) > 1)
        driver.fields.clear()
        driver.set_each(CRC, *values)
        return gpu.read()["nvlink_errors"]["crc"]

    assert [crc(1000, 50), crc(1001), crc(1002, 0), crc(1002, 3)] == [1050, 1051, 1052, 1055]


def test_link_that_comes_back_is_asked_for_its_speed_again() -> None:
    """A link that is down refuses its fields: that is forgotten once it is up."""
    driver = FakeLinks({0: 1, 1: 0})
    driver.set_each(SPEED, 26562)
    gpu = Reads(driver)
    gpu.read()
    driver.states[1] = 1
    driver.set_each(SPEED, 26562, 13281)

    assert gpu.read()["nvlink_speed_min_megabytes_per_second"] == 13281


def test_failure_that_passes_is_no_reading_and_no_lost_link() -> None:
    """A timeout takes the series for a moment, and does not make a GPU of 17 links."""
    driver = FakeLinks({0: 1, 1: 1})
    gpu = Reads(driver)
    gpu.read()
    driver.answers["link_state"] = Fails(pynvml.NVML_ERROR_TIMEOUT)
    failed = gpu.read()
    driver.answers["link_state"] = driver.state

    assert failed == {}
    assert gpu.read(1.0)["nvlink_links"] == 2


def test_link_beyond_what_the_driver_knows_is_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older driver calls the number of such a link invalid."""

    def refuse(handle: object, link: int) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetNvLinkState", refuse)
    with pytest.raises(pynvml.NVMLError) as raised:
        link_state("handle", 20)

    assert raised.value.value == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_healthy_and_sick_links_through_the_real_bindings(supervise: Supervise) -> None:
    """One link at half speed and one down, of 18, are seen next to a healthy GPU."""
    supervisor = supervise(PATIENT)
    healthy, sick = wait_for_sample(
        supervisor, lambda sample: [gpu.nvlink_links for gpu in sample.gpus] == [18, 18]
    ).gpus

    assert (healthy.nvlink_links_up, sick.nvlink_links_up) == (18, 17)
    assert healthy.nvlink_speed_min_megabytes_per_second == 26562
    assert sick.nvlink_speed_min_megabytes_per_second == 13281
    assert healthy.nvlink_errors == {"replay": 0, "recovery": 0, "crc": 0}
    assert sick.nvlink_errors == {"replay": 7, "recovery": 1, "crc": 42}
    assert (sick.nvlink_link_errors, sick.nvlink_link_states) == ({"3": 50}, {"5": 0})
    assert (healthy.nvlink_link_errors, healthy.nvlink_link_states) == (None, None)
    assert sick.nvlink_transmit_bytes == 2**30
