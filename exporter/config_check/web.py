"""Checks of the web configuration file and of the certificates that it names."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from exporter.config_check.certificate import validity
from exporter.config_check.findings import Findings
from exporter.errors import reason
from exporter.web.config import FLAG, read_web_config

# A renewal that fails has been failing for a while then: ACME clients renew a month before.
SOON: Final = timedelta(days=14)
OTHERS_READ: Final = 0o004


def check_web_config(path: Path, findings: Findings, now: datetime | None = None) -> None:
    """Add what is wrong with the file at *path* at the time *now*."""
    reading = read_web_config(path)
    findings.problems.extend(reading.problems)
    if reading.config.tls is None:
        return
    _, certificate, key, *_ = reading.files
    findings.warnings.extend(_validity_warnings(certificate, now or datetime.now(UTC)))
    if key.stat().st_mode & OTHERS_READ:
        findings.warnings.append(f"{FLAG}: other users of this node can read {key}: chmod 0640 it")


def _validity_warnings(certificate: Path, now: datetime) -> list[str]:
    try:
        begin, end = validity(certificate.read_text())
    except OSError as error:
        return [f"{FLAG}: cannot read {certificate}: {reason(error)}"]
    except ValueError as error:
        return [f"{FLAG}: cannot tell until when {certificate} is valid: {error}"]
    if now < begin:
        return [f"{FLAG}: {certificate} is valid only from {begin:%Y-%m-%d %H:%M} UTC on"]
    if now >= end:
        return [f"{FLAG}: {certificate} has expired at {end:%Y-%m-%d %H:%M} UTC: renew it"]
    if end - now < SOON:
        return [f"{FLAG}: {certificate} expires at {end:%Y-%m-%d %H:%M} UTC: renew it"]
    return []
