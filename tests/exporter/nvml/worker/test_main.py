import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.nvml.process import PACKAGE_ROOT, SUPERSEDED_STATUS
from exporter.nvml.sample import NodeSample
from tests import nvmlstub
from tests.exporter.nvml.stub import PATIENT, QUICK, Scenario, wait_for
from tests.exporter.tried_again import tried_again

# Nothing here depends on how long it is from sample to sample.
BRISK = replace(QUICK, interval_seconds=0.05)


@contextmanager
def worker(environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker without a supervisor."""
    process = subprocess.Popen(
        [sys.executable, "-m", "exporter.nvml.worker", *BRISK.to_arguments()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=PACKAGE_ROOT,
        env={**os.environ, **environment},
        # A test run in the background has SIGINT ignored, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def next_sample(process: subprocess.Popen[bytes]) -> NodeSample:
    assert process.stdout is not None
    return NodeSample.from_json(process.stdout.readline())


def sample_with_gpus(process: subprocess.Popen[bytes], number: int) -> NodeSample:
    """Return the next sample with *number* GPUs, all of them read."""
    while True:
        sample = next_sample(process)
        if sample.gpus_visible == number and all(gpu.up for gpu in sample.gpus):
            return sample


@pytest.fixture
def environment(library: Path, scenario: Scenario) -> dict[str, str]:
    return nvmlstub.environment(library, scenario=scenario.path)


def errors(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.read().decode()


def test_driver_that_is_loaded_later_is_found(
    environment: dict[str, str], scenario: Scenario
) -> None:
    """A node whose driver comes up after the exporter needs no restart."""
    scenario.play("nvmlInitWithFlags * 9")
    with worker(environment) as process:
        assert sample_with_gpus(process, 0).error_reason == "driver_not_loaded"
        scenario.play()

        assert sample_with_gpus(process, 2).error_reason is None


def test_driver_newer_than_the_library_in_use_asks_for_a_new_process(
    environment: dict[str, str], scenario: Scenario
) -> None:
    """A driver that comes after its library was loaded and does not fit it costs no minute."""
    scenario.play("nvmlInitWithFlags * 9")
    with worker(environment) as process:
        sample_with_gpus(process, 0)
        scenario.play("nvmlInitWithFlags * 18")

        assert errors(process) == ""
        assert process.wait(20) == SUPERSEDED_STATUS


@pytest.mark.parametrize("how", ["end of file", "SIGTERM"])
@tried_again
def test_end_shuts_nvml_down(environment: dict[str, str], tmp_path: Path, how: str) -> None:
    """Told to end, or left alone by its parent, the worker leaves the driver in good order."""
    mark = tmp_path / "shut-down"
    with worker({**environment, "STUB_SHUTDOWN_MARK": str(mark)}) as process:
        sample_with_gpus(process, 2)
        assert process.stdin is not None
        if how == "SIGTERM":
            process.terminate()
        else:
            process.stdin.close()

        assert process.wait(20) == 0
    assert mark.exists()


@pytest.mark.parametrize("function", ["nvmlDeviceGetPowerUsage", "nvmlShutdown"])
def test_hung_driver_does_not_keep_the_worker(
    environment: dict[str, str], scenario: Scenario, function: str
) -> None:
    """The worker ends on SIGTERM though a call, even nvmlShutdown, never returns."""
    with worker(environment) as process:
        sample_with_gpus(process, 2)
        scenario.play(f"{function} * hang")
        next_sample(process)
        process.terminate()

        assert process.wait(20) in (0, -signal.SIGALRM)


def test_interrupt_is_left_to_the_parent(environment: dict[str, str]) -> None:
    """Ctrl-C in a terminal reaches the worker too, which continues until its parent ends it."""
    with worker(environment) as process:
        sample_with_gpus(process, 2)
        process.send_signal(signal.SIGINT)

        assert all(next_sample(process) for _ in range(5))


def test_what_the_library_prints_is_not_taken_for_a_sample(environment: dict[str, str]) -> None:
    """A driver that writes on standard output writes into the log, not between the samples."""
    with worker({**environment, "STUB_CHATTER": "1"}) as process:
        sample_with_gpus(process, 2)
        process.terminate()

        assert errors(process) == "a word from the driver\n"


def test_crash_names_the_call(environment: dict[str, str], scenario: Scenario) -> None:
    """A segmentation fault in the driver's library leaves the name of the function in the log."""
    scenario.play("nvmlDeviceGetTemperature 1 crash")
    with worker(environment) as process:
        said = errors(process)
        assert process.wait(20) == -signal.SIGSEGV

    assert "in nvmlDeviceGetTemperature" in said


@pytest.mark.parametrize("code", [1, 9, 18])
def test_driver_reloaded_under_the_worker_ends_it_in_one_line(
    environment: dict[str, str], scenario: Scenario, code: int
) -> None:
    """A library that no longer fits the driver cannot be unloaded: the process ends and says so."""
    scenario.play(f"nvmlDeviceGetPowerUsage * {code}")
    with worker(environment) as process:
        said = errors(process)
        assert process.wait(20) == 1

    assert f"nvmlDeviceGetPowerUsage on GPU 0 returned {code}: " in said
    assert len(said.splitlines()) == 1


def test_worker_does_not_outlive_a_killed_parent(environment: dict[str, str]) -> None:
    """SIGKILL of the exporter leaves no worker behind."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *PATIENT.to_arguments()],
        stdout=subprocess.PIPE,
        cwd=PACKAGE_ROOT,
        env={**os.environ, **environment},
    )
    with parent:
        try:
            assert parent.stdout is not None
            worker_pid = int(parent.stdout.readline())
        finally:
            parent.kill()

    wait_for(lambda: not is_running(worker_pid))


def is_running(pid: int) -> bool:
    """Whether the process is there, and has not just ended without anyone to take note of it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


PARENT = """
import sys, time
from exporter.nvml.supervisor import NvmlSupervisor
from exporter.nvml.timing import Timing

supervisor = NvmlSupervisor(Timing.from_arguments(sys.argv[1:]))
supervisor.start()
while supervisor.latest() is None:
    time.sleep(0.02)
print(supervisor.worker_pid, flush=True)
time.sleep(60)
"""
