"""A trace is read as torch writes it, or it is said in one line why not."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from torch.autograd import profiler

from exporter.errors import UsageError
from exporter.profiles.trace import kind_of, read_trace, trace_of
from tests.exporter.profiles.traces import cpu_trace


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn", "GEMM"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "GEMM"),
        ("aten::addmm", "GEMM"),
        ("aten::bmm", "GEMM"),
        ("flash_fwd_kernel", "attention"),
        ("aten::_scaled_dot_product_flash_attention", "attention"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication"),
        ("gloo:all_reduce", "communication"),
        ("void at::native::reduce_kernel<512, 1>", "reduction"),
        ("aten::_softmax", "reduction"),
        ("void at::native::vectorized_elementwise_kernel<4>", "elementwise"),
        ("aten::mul", "elementwise"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("aten::copy_", "copies"),
        ("aten::convolution_backward", "convolution"),
        ("aten::sort", "other"),
    ],
)
def test_names_have_classes(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_operator_has_its_own_time_a_step(tmp_path: Path) -> None:
    """What an operator calls is not its own; a file may be compressed."""
    document = cpu_trace({"aten::linear": 10})
    inner = dict(document["traceEvents"][1], name="aten::mm", dur=8_000.0)
    document["traceEvents"].append(inner)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    trace = read_trace(path)

    assert trace.step_seconds == pytest.approx(0.05)
    seconds = {name: each.seconds for name, each in trace.operations.items()}
    assert seconds == pytest.approx({"aten::linear": 0.006, "aten::mm": 0.004})


def test_trace_of_this_torch_is_read(tmp_path: Path) -> None:
    """Also one without marks, which counts as one step."""
    with profiler.profile() as running:
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))
    running.export_chrome_trace(str(tmp_path / "t.json"))
    trace = read_trace(tmp_path / "t.json")

    assert trace.operations["aten::mm"].calls == 1
    assert 0 < trace.operations["aten::mm"].seconds < trace.step_seconds
    assert not trace.has_device


def test_steps_of_a_schedule_are_counted() -> None:
    """A trace of the user's own has a mark for each step."""
    document = cpu_trace({"aten::mm": 10})
    marks = [dict(document["traceEvents"][0], name=f"ProfilerStep#{number}") for number in (3, 4)]
    document["traceEvents"][:1] = [dict(mark, dur=50_000.0) for mark in marks]

    assert trace_of(document).operations["aten::mm"].calls == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"traceEvents": [1]}', b"\x1f\x8b", None])
def test_what_is_no_trace_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    """A file that is cut off or missing, or another one."""
    path = tmp_path / "t.json.gz" if content == b"\x1f\x8b" else tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"t\.json.*(is not a whole trace|No such file)"):
        read_trace(path)
