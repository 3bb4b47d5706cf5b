import pynvml
import pytest

from exporter.nvml.calls import GPU_LOST, PROCESS_OBSOLETE, UNSUPPORTED, CallFailed
from tests.exporter.nvml.driver import Driver, Fails


def power(handle: str, unit: int = 1) -> int:
    """A driver function: its answer tells what it was asked with."""
    return {"handle": 1, "part": 2}[handle] * unit


def test_question_gets_the_handle_unless_it_is_raw() -> None:
    """The GPU's handle is the first argument; a raw question brings its own."""
    ask = Driver(power=power).opened()

    assert (ask(power, 10), ask.raw(power, "part", 10)) == (10, 20)
    assert (ask.has_answered, ask.failure) == (True, None)


@pytest.mark.parametrize("code", sorted(UNSUPPORTED))
def test_what_is_not_supported_is_not_asked_again(code: int) -> None:
    """A question that this GPU cannot answer costs one call per hour, for only these arguments."""
    driver = Driver(power=Fails(code))
    ask = driver.opened()

    assert [ask(power, 10) for _ in range(3)] == [None] * 3
    assert driver.asked == {"power": 1}
    assert not ask.supports(power, 10)
    driver.answers["power"] = power
    assert ask(power, 20) == 20


def test_passing_failure_is_no_reading_now() -> None:
    """A timeout is noted as a failure, and the question asked again."""
    ask = Driver(power=Fails(pynvml.NVML_ERROR_TIMEOUT)).opened()

    assert ask(power) is None
    assert not ask.has_answered
    assert ask.failure is not None
    assert ask.failure.code == pynvml.NVML_ERROR_TIMEOUT
    assert ask.supports(power)
    ask.forget_answers()
    assert ask.failure is None


@pytest.mark.parametrize("code", sorted(GPU_LOST | PROCESS_OBSOLETE))
def test_loss_is_raised(code: int) -> None:
    """If the GPU is lost, or only a new process can continue, the caller must know."""
    with pytest.raises(CallFailed):
        Driver(power=Fails(code)).opened()(power)
