"""The dates of a certificate are read from it."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from exporter.config_check.certificate import validity
from tests.exporter.certificates import make_certificate


def test_dates_are_those_that_openssl_shows(tmp_path: Path) -> None:
    """Two days for the certificates of the tests."""
    certificate, _ = make_certificate(tmp_path, "node")
    shown = subprocess.run(
        ["openssl", "x509", "-in", str(certificate), "-noout", "-enddate"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    begin, end = validity(certificate.read_text())

    assert f"notAfter={end:%b} {end.day:2} {end:%H:%M:%S %Y} GMT\n" == shown
    assert end - begin == timedelta(days=2)


def test_dates_after_2049_have_four_digits(tmp_path: Path) -> None:
    """A certificate that never expires has GeneralizedTime, and text may precede it."""
    certificate, _ = make_certificate(tmp_path, "node", days=40_000)
    begin, end = validity("subject=CN = node\n" + certificate.read_text())

    assert begin < datetime.now(UTC) < end
    assert end - begin == timedelta(days=40_000)


@pytest.mark.parametrize(
    "pem",
    [
        "",
        "-----BEGIN CERTIFICATE-----",
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    ],
)
def test_anything_else_is_a_value_error(pem: str) -> None:
    """A damaged file is a sentence for the operator, not a traceback."""
    with pytest.raises(ValueError, match="no certificate that can be read"):
        validity(pem)
