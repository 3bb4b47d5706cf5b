"""A trace is read as torch writes it, or it is said in one line why not."""

import json
import os
from pathlib import Path

import pytest
import torch
from torch.autograd import profiler

from exporter.errors import UsageError
from exporter.profiles import trace
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
    """What an operator calls is not its own."""
    document = cpu_trace({"aten::linear": 10})
    inner = dict(document["traceEvents"][1], name="aten::mm", dur=8_000.0)
    document["traceEvents"].append(inner)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    found = read_trace(path)

    assert found.step_seconds == pytest.approx(0.05)
    seconds = {name: each.seconds for name, each in found.operations.items()}
    assert seconds == pytest.approx({"aten::linear": 0.006, "aten::mm": 0.004})


def test_trace_of_this_torch_is_read(tmp_path: Path) -> None:
    """Also one without marks, which counts as one step."""
    with profiler.profile() as running:
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))
    running.export_chrome_trace(str(tmp_path / "t.json"))
    found = read_trace(tmp_path / "t.json")

    assert found.operations["aten::mm"].calls == 1
    assert 0 < found.operations["aten::mm"].seconds < found.step_seconds
    assert not found.has_device


def test_steps_of_a_schedule_are_counted() -> None:
    """A trace of the user's own has a mark for each step."""
    document = cpu_trace({"aten::mm": 10})
    marks = [dict(document["traceEvents"][0], name=f"ProfilerStep#{number}") for number in (3, 4)]
    document["traceEvents"][:1] = [dict(mark, dur=50_000.0) for mark in marks]

    assert trace_of(document).operations["aten::mm"].calls == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"traceEvents": [1]}', None])
def test_what_is_no_trace_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    """A file that is cut off or missing, or another one."""
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"t\.json.*(is not a whole trace|No such file)"):
        read_trace(path)


def test_path_that_a_hostile_rank_names_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root reads what a rank says is its trace: neither a pipe nor what fills the memory."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("12345")
    monkeypatch.setattr(trace, "MOST_BYTES", 4)
    for path in (tmp_path / "pipe", tmp_path / "large", Path("/dev/zero")):
        with pytest.raises(UsageError, match="too large, or no file"):
            read_trace(path)
