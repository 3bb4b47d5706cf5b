from collections.abc import Callable

import pynvml
import pytest

from exporter.nvml.readings.one_call import decoder_utilization, performance_state


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, object], None]:
    """Let a function of the driver answer, or fail with an error."""

    def let(function: str, answer: object) -> None:
        def call(*arguments: object) -> object:
            if isinstance(answer, pynvml.NVMLError):
                raise answer
            return answer

        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{function}", call)

    return let


Say = Callable[[str, object], None]


def test_unknown_performance_state_is_none(say: Say) -> None:
    """NVML has 32 for a state that it does not know, which is not the slowest of all."""
    say("PerformanceState", 32)

    with pytest.raises(pynvml.NVMLError) as raised:
        performance_state(object())
    assert raised.value.value == pynvml.NVML_ERROR_NOT_SUPPORTED


NO_DECODER = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
NO_CALL = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


@pytest.mark.parametrize(
    ("video", "images", "told"),
    [
        (30, (95, 167_000), 95),
        (95, (30, 167_000), 95),
        (0, (0, 167_000), 0),
        (40, NO_DECODER, 40),
        (40, NO_CALL, 40),
    ],
)
def test_busier_decoder_counts(say: Say, video: int, images: object, told: int) -> None:
    """Videos and images have a decoder each; older GPUs and drivers lack that of images."""
    say("DecoderUtilization", (video, 167_000))
    say("JpgUtilization", images)

    assert decoder_utilization(object()) == told


def test_lost_gpu_has_no_decoder(say: Say) -> None:
    """Only a missing decoder of images is passed over; other failures are told."""
    say("DecoderUtilization", (40, 167_000))
    say("JpgUtilization", pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))

    with pytest.raises(pynvml.NVMLError):
        decoder_utilization(object())
