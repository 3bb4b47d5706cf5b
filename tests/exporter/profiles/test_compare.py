"""The sentence names the operation that takes longer, and a clock only if nothing else can be."""

from collections.abc import Mapping

import pytest

from exporter.profiles.compare import as_text, sentence
from exporter.profiles.trace import trace_of
from tests.exporter.profiles.traces import cpu_trace, device_trace

MM, ADD, SLEEP = "aten::mm", "aten::add_", "aten::sleep_op"
KERNELS = {
    ("aten::mm", "ampere_sgemm_128x64"): 20.0,
    ("aten::add", "void at::native::vectorized_elementwise_kernel<4>"): 5.0,
    ("aten::copy_", "Memcpy DtoD"): 1.0,
    ("c10d::allreduce_", "ncclDevKernel_AllReduce_Sum_f32"): 9.0,
}


@pytest.mark.parametrize(
    ("late", "said"),
    [
        ({MM: 20, ADD: 5, SLEEP: 21}, "aten::sleep_op takes 21 ms a step, 1 ms on its peer."),
        ({MM: 30, ADD: 5, SLEEP: 1}, "aten::mm takes 30 ms a step, 20 ms on its peer."),
        # Less than the noise of a step.
        ({MM: 20.9, ADD: 5, SLEEP: 1}, "No operators take longer than on its peer, so the delay"),
        ({MM: 28, ADD: 7, SLEEP: 1.4}, "All operators take 1.4 times as long, whatever they"),
        # What waits for other ranks takes longer on who is early.
        ({MM: 20, ADD: 5, SLEEP: 1, "c10d::allreduce_": 30}, "No operators take longer"),
        ({MM: 20, ADD: 5, SLEEP: 1, "aten::sort": 9}, "aten::sort takes 9 ms a step, 0 ms on its"),
    ],
)
def test_operation_is_named(late: Mapping[str, float], said: str) -> None:
    """By what it takes longer a step than on the peer, on the CPU."""
    peer = trace_of(cpu_trace({MM: 20, ADD: 5, SLEEP: 1}))

    assert sentence(trace_of(cpu_trace(late)), peer).startswith(said)


def test_more_calls_are_no_slower_clock() -> None:
    """A rank that does all twice has more work, and the sentence says how often it calls."""
    late, peer = trace_of(cpu_trace({MM: 40, ADD: 10}, 2)), trace_of(cpu_trace({MM: 20, ADD: 5}))

    assert sentence(late, peer) == "aten::mm takes 40 ms a step, 20 ms on its peer: 2 calls, not 1."


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        (
            (1.4, 1.4, 1.0, 0.2),
            "All kernels take 1.4 times as long, whatever they compute: clocks.",
        ),
        ((1.4, 1.2, 1.0, 0.2), "aten::mm (GEMM) takes 28 ms a step, 20 ms on its peer."),
        ((1.4, 1.0, 1.0, 0.2), "aten::mm (GEMM) takes 28 ms a step, 20 ms on its peer."),
        ((1.0, 1.0, 9.0, 1.0), "aten::copy_ (copies) takes 9 ms a step, 1 ms on its peer."),
    ],
)
def test_clocks_are_named_only_if_all_classes_are_slower(
    factors: tuple[float, ...], said: str
) -> None:
    """Kernels are summed by the operator that launched them, with their class."""
    late = {key: KERNELS[key] * factor for key, factor in zip(KERNELS, factors, strict=True)}

    assert sentence(trace_of(device_trace(late)), trace_of(device_trace(KERNELS))) == said


def test_device_and_cpu_are_not_compared() -> None:
    one, other = trace_of(device_trace(KERNELS)), trace_of(cpu_trace({MM: 20}))

    assert "cannot be compared" in sentence(one, other)


def test_table_has_classes_and_operations() -> None:
    """Most different first, with one that only the peer has, in milliseconds a step."""
    late, peer = trace_of(cpu_trace({MM: 30})), trace_of(cpu_trace({MM: 20, ADD: 5}))
    rows = [line.split() for line in as_text(late, peer).splitlines()[3:]]

    assert rows == [
        ["GEMM", "30.00", "20.00"],
        ["elementwise", "0.00", "5.00"],
        [MM, "30.00", "20.00"],
        [ADD, "0.00", "5.00"],
    ]
