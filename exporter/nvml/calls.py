"""The only place that calls pynvml: each call is watched, and failures have their own types."""

import threading
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

import pynvml

from exporter.nvml.sample import StuckCall

P = ParamSpec("P")
T = TypeVar("T")

# The meaning of return codes (nvml.h, nvmlReturn_t).
# This reading is unavailable to this GPU, driver or user; asking every second does not help.
UNSUPPORTED: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
# This GPU is gone; the other GPUs' handles stay valid.
GPU_LOST: Final = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
# The driver was unloaded or upgraded. pynvml never unloads its library, so only a new process can
# continue.
PROCESS_OBSOLETE: Final = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)

# Without a persistence daemon, opening a GPU makes the driver wake it, which takes seconds.
SLOW_FUNCTIONS: Final = frozenset({"nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlShutdown"})


class CallFailed(Exception):
    """An NVML function returned *code*.

    Keep pynvml.NVMLError inside this module: it is not hashable, and comparing it with anything
    else raises.
    """

    def __init__(self, function: str, gpu: int | None, code: int, meaning: str) -> None:
        place = "" if gpu is None else f" on GPU {gpu}"
        super().__init__(f"{function}{place} returned {code}: {meaning}")
        self.code = code


# Function, GPU and start time. A tuple, not a class: there are a thousand calls a second.
_UnderWay = tuple[str, int | None, float]


class Calls:
    """Calls pynvml from any thread and knows which calls have not returned yet."""

    def __init__(self, limit_seconds: float, slow_limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._slow_limit_seconds = slow_limit_seconds
        self._under_way: dict[int, _UnderWay] = {}

    def __call__(
        self, gpu: int | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of *function*; raise CallFailed if NVML reports an error."""
        thread_id = threading.get_native_id()
        self._under_way[thread_id] = (function.__name__, gpu, time.monotonic())
        try:
            return function(*args, **kwargs)
        except pynvml.NVMLError as error:
            raise CallFailed(function.__name__, gpu, error.value, str(error)) from None
        except Exception as error:
            code = pynvml.NVML_ERROR_UNKNOWN
            raise CallFailed(function.__name__, gpu, code, repr(error)) from error
        finally:
            del self._under_way[thread_id]

    def is_idle(self) -> bool:
        """Whether no call is under way."""
        return not self._under_way

    def stuck(self) -> StuckCall | None:
        """Return the call that is most overdue, None if there is none."""
        now = time.monotonic()
        stuck = [
            StuckCall(function, gpu, now - started, thread_id)
            for thread_id, (function, gpu, started) in self._under_way.copy().items()
            if now - started > self._limit(function)
        ]
        return max(stuck, key=lambda call: call.seconds, default=None)

    def _limit(self, function: str) -> float:
        return self._slow_limit_seconds if function in SLOW_FUNCTIONS else self._limit_seconds
