import pynvml
import pytest

from exporter.nvml.readings.one_call import margin_to_slowdown


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
