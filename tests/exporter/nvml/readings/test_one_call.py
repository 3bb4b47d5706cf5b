from collections.abc import Callable

import pynvml
import pytest

from exporter.nvml.readings.one_call import (
    decoder_utilization,
    margin_to_slowdown,
    performance_state,
)


@pytest.mark.parametrize(("temperature", "margin"), [(60, 27), (88, -1)])
def test_margin_is_what_is_left_to_the_threshold(
    monkeypatch: pytest.MonkeyPatch, temperature: int, margin: int
) -> None:
    """Below the slowdown threshold degrees are left, beyond it the margin is negative."""
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperatureThreshold", lambda *_: 87)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", lambda *_: temperature)

    assert margin_to_slowdown(object()) == margin


def test_gpu_without_threshold_has_no_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A threshold of 0 means none, not a GPU that is 60 degrees too hot."""
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperatureThreshold", lambda *_: 0)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", lambda *_: 60)

    with pytest.raises(pynvml.NVMLError):
        margin_to_slowdown(object())


def test_unknown_performance_state_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML has 32 for a state that it does not know, which is not the slowest of all."""
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPerformanceState", lambda _: 32)

    with pytest.raises(pynvml.NVMLError) as raised:
        performance_state(object())
    assert raised.value.value == pynvml.NVML_ERROR_NOT_SUPPORTED


@pytest.mark.parametrize(("video", "images", "told"), [(30, 95, 95), (95, 30, 95), (0, 0, 0)])
def test_busier_decoder_counts(
    monkeypatch: pytest.MonkeyPatch, video: int, images: int, told: int
) -> None:
    """Videos and images have a decoder each, and either may be the bottleneck."""
    monkeypatch.setattr(pynvml, "nvmlDeviceGetDecoderUtilization", lambda _: [video, 167_000])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetJpgUtilization", lambda _: [images, 167_000])

    assert decoder_utilization(object()) == told


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND]
)
def test_gpu_without_a_decoder_of_images_has_that_of_videos(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Older GPUs and drivers lack the other call."""
    monkeypatch.setattr(pynvml, "nvmlDeviceGetDecoderUtilization", lambda _: [40, 167_000])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetJpgUtilization", _fails(code))

    assert decoder_utilization(object()) == 40


def test_lost_gpu_has_no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a missing decoder of images is passed over; other failures are told."""
    monkeypatch.setattr(pynvml, "nvmlDeviceGetDecoderUtilization", lambda _: [40, 167_000])
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetJpgUtilization", _fails(pynvml.NVML_ERROR_GPU_IS_LOST)
    )

    with pytest.raises(pynvml.NVMLError):
        decoder_utilization(object())


def _fails(code: int) -> Callable[[object], None]:
    def call(handle: object) -> None:
        raise pynvml.NVMLError(code)

    return call
