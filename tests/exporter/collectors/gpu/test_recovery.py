"""What the driver advises to do with a GPU is exposed by NVML's number, which HELP explains."""

import re

import pynvml

from exporter.collectors.gpu.recovery import GpuRecoveryCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import expose, node, series


def test_driver_that_gives_no_advice_has_no_series() -> None:
    """An older driver's silence is not taken for "nothing to do"."""
    assert series(expose(GpuRecoveryCollector(node(GpuSample(3, up=True, uuid="GPU-a"))))) == []


def test_advice_is_exposed_by_its_number() -> None:
    """Nothing to do is a 0 that an alert can read."""
    well, sick = (
        GpuSample(index, up=True, uuid="GPU-a", recovery_action=action)
        for index, action in ((0, pynvml.NVML_GPU_RECOVERY_ACTION_NONE), (1, 4))
    )

    assert series(expose(GpuRecoveryCollector(node(well, sick)))) == [
        'rankskew_gpu_recovery_action{gpu="0",gpu_uuid="GPU-a"} 0.0',
        'rankskew_gpu_recovery_action{gpu="1",gpu_uuid="GPU-a"} 4.0',
    ]


def test_help_explains_every_number() -> None:
    """Each action that NVML knows is in HELP."""
    known = {
        value for name, value in vars(pynvml).items() if name.startswith("NVML_GPU_RECOVERY_ACTION")
    }
    (help,) = re.findall(r"^# HELP (.+)", expose(GpuRecoveryCollector(node())), re.MULTILINE)

    assert {int(number) for number in re.findall(r"[:,] (\d)", help)} == known
