"""Certificates for tests, made on the spot with the openssl command."""

import subprocess
from pathlib import Path


def make_certificate(directory: Path, name: str, days: int = 2) -> tuple[Path, Path]:
    """Write a self-signed certificate for localhost; return its path and its key's."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", str(days), "-subj", f"/CN={name}"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key
