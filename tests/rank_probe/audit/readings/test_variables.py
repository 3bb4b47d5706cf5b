"""Variables are compared without telling their secrets."""

import pytest

from rank_probe.audit.readings.variables import HIDDEN, compared, looked_at, shown


def test_only_what_matters_is_compared() -> None:
    """Neither other variables, nor those that differ between the ranks of a healthy job."""
    environment = {
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "4",
        "PYTORCH_ALLOC_CONF": "backend:native",
        "HOME": "/root",
        "NCCL_DEBUG_FILE": "/tmp/rank3",
        "CUDA_VISIBLE_DEVICES": "3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }

    assert list(compared(environment)) == ["NCCL_ALGO", "OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF"]
    assert looked_at(environment)["CUDA_VISIBLE_DEVICES"] == "3"
    assert "HOME" not in looked_at(environment)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FI_OPX_TOKEN", "hunter2"),
        ("NCCL_PLUGIN_SECRET", "hunter2"),
        ("UCX_AUTH", "hunter2"),
        ("FI_KEY", "hunter2"),
        ("NCCL_COMM_ID", "hunter2"),
        ("CUDA_PROXY", "http://user:hunter2@proxy:3128"),
    ],
)
def test_secrets_are_hidden(name: str, value: str) -> None:
    """Only a digest leaves the rank, which shows whether they differ."""
    assert shown(name, value).startswith(HIDDEN)
    assert "hunter2" not in shown(name, value)
    assert shown(name, value) != shown(name, f"{value}x")


def test_long_values_are_cut_and_still_differ() -> None:
    """The sentence stays readable, on any terminal."""
    first, second = shown("UCX_TLS", "a" * 500), shown("UCX_TLS", "a" * 499 + "b")

    assert len(first) < 140
    assert first != second
    assert shown("UCX_TLS", "tcp\x1b[2J").startswith("tcp?[2J... (")
