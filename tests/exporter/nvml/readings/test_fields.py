from collections.abc import Sequence

import pynvml
import pytest

from exporter.nvml.calls import CallFailed, Calls
from exporter.nvml.readings.fields import Field, FieldValues, field_value
from exporter.nvml.readings.query import UNSUPPORTED_FOR_SECONDS, Ask

UNSIGNED = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
FIVE = (UNSIGNED, "uiVal", 5)


class FakeFields:
    """A driver's field values: an nvmlReturn_t, or a type with the value and its member."""

    def __init__(self, answers: dict[Field, int | tuple[int, str, float]]) -> None:
        self.answers = answers
        self.asked: list[list[Field]] = []

    def __call__(self, handle: object, fields: Sequence[Field]) -> object:
        self.asked.append(list(fields))
        entries = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for entry, field in zip(entries, fields, strict=True):
            answer = self.answers.get(field, pynvml.NVML_ERROR_NOT_SUPPORTED)
            if isinstance(answer, int):
                entry.nvmlReturn = answer
            else:
                entry.valueType = answer[0]
                setattr(entry.value, answer[1], answer[2])
        return entries


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeFields:
    """A driver that has no field yet."""
    fake = FakeFields({})
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", fake)
    return fake


def read(ask: Ask, *fields: Field, now: float = 0.0) -> dict[Field, int | float]:
    return FieldValues(fields).read(ask, now)


@pytest.fixture
def ask() -> Ask:
    return Ask(0, object(), Calls(60.0, 60.0))


def test_gpu_without_field_values_is_asked_once_an_hour(driver: FakeFields, ask: Ask) -> None:
    """If no field is supported, there is no value, no failure, and no call for an hour."""
    fields = FieldValues([(74, 0), (76, 0)])

    assert fields.read(ask, 0.0) == {} == fields.read(ask, 1.0)
    assert len(driver.asked) == 1
    assert ask.failure is None


def test_each_value_is_read_as_its_own_type_in_one_call(driver: FakeFields, ask: Ask) -> None:
    """The type is the entry's own, a scope is part of the field, and one call asks for all."""
    driver.answers = {
        (1, 0): (UNSIGNED, "uiVal", 2**32 - 1),
        (1, 7): (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, "ullVal", 2**40),
        (2, 0): (pynvml.NVML_VALUE_TYPE_SIGNED_INT, "siVal", -3),
        (3, 0): (pynvml.NVML_VALUE_TYPE_DOUBLE, "dVal", 0.5),
    }

    assert read(ask, *driver.answers) == {
        (1, 0): 2**32 - 1,
        (1, 7): 2**40,
        (2, 0): -3,
        (3, 0): 0.5,
    }
    assert len(driver.asked) == 1


@pytest.mark.parametrize(
    "never",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        (pynvml.NVML_VALUE_TYPE_COUNT, "ullVal", 1),
    ],
    ids=["not supported", "no permission", "unknown number", "unknown type"],
)
def test_unsupported_field_is_left_out_for_an_hour(
    driver: FakeFields, ask: Ask, never: int | tuple[int, str, float]
) -> None:
    """A field that this GPU does not have costs the others nothing, and is tried again later."""
    driver.answers = {(1, 0): never, (2, 0): FIVE}
    fields = FieldValues([(1, 0), (2, 0)])
    for now in (0.0, 1.0, UNSUPPORTED_FOR_SECONDS):
        assert fields.read(ask, now) == {(2, 0): 5}

    assert driver.asked == [[(1, 0), (2, 0)], [(2, 0)], [(1, 0), (2, 0)]]


def test_passing_failure_costs_one_value_once(driver: FakeFields, ask: Ask) -> None:
    """A field that is unavailable now is read again the next time."""
    driver.answers = {(1, 0): pynvml.NVML_ERROR_TIMEOUT, (2, 0): FIVE}
    fields = FieldValues([(1, 0), (2, 0)])
    assert fields.read(ask, 0.0) == {(2, 0): 5}
    driver.answers[(1, 0)] = FIVE

    assert fields.read(ask, 1.0) == {(1, 0): 5, (2, 0): 5}


def test_fields_that_all_fail_are_a_failure(driver: FakeFields, ask: Ask) -> None:
    """A GPU that answers 999 to everything is not taken for one that lacks the fields."""
    driver.answers = {(1, 0): pynvml.NVML_ERROR_NOT_SUPPORTED, (2, 0): pynvml.NVML_ERROR_UNKNOWN}

    assert read(ask, (1, 0), (2, 0)) == {}
    assert ask.failure is not None
    assert ask.failure.code == pynvml.NVML_ERROR_UNKNOWN
    assert not ask.has_answered


def test_lost_gpu_is_told_by_one_field(driver: FakeFields, ask: Ask) -> None:
    """The call itself may succeed on a lost GPU: an entry with that error counts."""
    driver.answers = {(1, 0): FIVE, (2, 0): pynvml.NVML_ERROR_GPU_IS_LOST}

    with pytest.raises(CallFailed):
        read(ask, (1, 0), (2, 0))


def test_one_field_alone_has_a_value_or_raises(driver: FakeFields) -> None:
    """A reading of one field fails as any other NVML call does."""
    driver.answers = {(82, 0): FIVE}

    assert field_value(object(), 82) == 5
    with pytest.raises(pynvml.NVMLError):
        field_value(object(), 230)
