import threading

import pynvml
import pytest

from exporter.nvml.calls import CallFailed, Calls

PATIENT = Calls(limit_seconds=60.0, slow_limit_seconds=60.0)


def nvmlDeviceGetPowerUsage() -> int:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


def test_failure_names_function_gpu_and_code() -> None:
    """pynvml's error, which cannot be hashed, becomes one that can, with all there is to say."""
    with pytest.raises(CallFailed, match="nvmlDeviceGetPowerUsage on GPU 3 returned 15") as failed:
        PATIENT(3, nvmlDeviceGetPowerUsage)

    assert failed.value.code == pynvml.NVML_ERROR_GPU_IS_LOST
    assert {failed.value}
    assert PATIENT.is_idle()


def test_answer_that_pynvml_cannot_read_costs_that_reading_alone() -> None:
    """What else pynvml raises, as on a name that is no UTF-8, is a failure of that call."""

    def nvmlDeviceGetName() -> str:
        return b"\xff".decode()

    with pytest.raises(CallFailed, match="nvmlDeviceGetName on GPU 0 returned 999: Unicode") as got:
        PATIENT(0, nvmlDeviceGetName)

    assert got.value.code == pynvml.NVML_ERROR_UNKNOWN


def test_call_that_does_not_return_is_stuck_until_it_does() -> None:
    """A call over its time is named with its GPU and thread; one that returns is forgotten."""
    calls = Calls(limit_seconds=0.0, slow_limit_seconds=60.0)
    begun, released = threading.Event(), threading.Event()

    def nvmlDeviceGetUUID() -> None:
        begun.set()
        released.wait(20)

    thread = threading.Thread(target=calls, args=(5, nvmlDeviceGetUUID))
    thread.start()
    try:
        assert begun.wait(20)
        stuck = calls.stuck()
    finally:
        released.set()
        thread.join()

    assert stuck is not None
    assert (stuck.function, stuck.gpu) == ("nvmlDeviceGetUUID", 5)
    assert stuck.thread_id == thread.native_id
    assert calls.stuck() is None


def test_waking_a_gpu_may_take_longer() -> None:
    """Opening NVML takes seconds per GPU without a persistence daemon: that is not stuck."""
    calls = Calls(limit_seconds=0.0, slow_limit_seconds=60.0)
    stuck = []

    def nvmlInit() -> None:
        stuck.append(calls.stuck())

    calls(None, nvmlInit)

    assert stuck == [None]
