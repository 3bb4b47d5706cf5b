"""NVML's field values: readings by number, many per call, each with its own result."""

from collections.abc import Sequence
from typing import Final

import pynvml

from exporter.nvml.calls import GPU_LOST, PROCESS_OBSOLETE, UNSUPPORTED
from exporter.nvml.readings.query import UNSUPPORTED_FOR_SECONDS, Ask

# A field's number (NVML_FI_DEV_...) and its scope: a link's number, or 0 if nvml.h names none.
Field = tuple[int, int]

# The driver answers "invalid argument" for numbers that it does not know yet.
_NEVER: Final = UNSUPPORTED | {pynvml.NVML_ERROR_INVALID_ARGUMENT}

# The member of nvmlValue_t to read, by nvmlValueType_t. A field's type differs between drivers.
_MEMBERS: Final = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}


class FieldValues:
    """Reads fields of one GPU in one call.

    The call costs the sum of its fields, so an unsupported field is skipped for an hour.
    """

    def __init__(self) -> None:
        self._ask_again_at: dict[Field, float] = {}

    def read(self, ask: Ask, now: float, of: Sequence[Field]) -> dict[Field, int | float]:
        """Return the values, at monotonic time *now*, *of* those fields that have one.

        Raises CallFailed when the GPU is lost or the process cannot continue.
        """
        fields = tuple(field for field in of if now >= self._ask_again_at.get(field, 0.0))
        answers = (ask(field_values, fields) if fields else None) or {}
        for field, value in answers.items():
            if value is None:
                self._ask_again_at[field] = now + UNSUPPORTED_FOR_SECONDS
        return {field: value for field, value in answers.items() if value is not None}


def field_values(handle: object, fields: Sequence[Field]) -> dict[Field, int | float | None]:
    """Read *fields* from the GPU: None is "not supported"; currently unavailable ones are left out.

    Raises pynvml.NVMLError if there is no value at all, and when the GPU is lost.
    """
    values: dict[Field, int | float | None] = {}
    failures: list[int] = []
    for field, entry in zip(
        fields, pynvml.nvmlDeviceGetFieldValues(handle, list(fields)), strict=True
    ):
        code = entry.nvmlReturn
        if code in GPU_LOST | PROCESS_OBSOLETE:
            raise pynvml.NVMLError(code)
        if code == pynvml.NVML_SUCCESS and entry.valueType in _MEMBERS:
            values[field] = getattr(entry.value, _MEMBERS[entry.valueType])
        elif code == pynvml.NVML_SUCCESS or code in _NEVER:  # SUCCESS: its type is unknown.
            values[field] = None
            failures.append(pynvml.NVML_ERROR_NOT_SUPPORTED)
        else:
            failures.insert(0, code)  # The first is raised; prefer one other than "not supported".
    if len(failures) == len(fields):
        raise pynvml.NVMLError(failures[0])
    return values


def field_value(handle: object, field: int) -> int:
    """Read one whole number from the GPU; raise pynvml.NVMLError if it has no value."""
    (value,) = field_values(handle, [(field, 0)]).values()
    assert value is not None  # field_values() would have raised.
    return int(value)
