"""Checks everything that the exporter opens or reads when it starts, and opens nothing for good."""

from functools import partial
from pathlib import Path

from exporter.config_check import places
from exporter.config_check.findings import Findings
from exporter.config_check.web import check_web_config
from exporter.errors import UsageError
from exporter.ingest import token_file
from exporter.settings import Settings
from exporter.vocabulary.thresholds import read_overrides

TOKEN_FLAG = "--ingest.token-file"


def check(settings: Settings) -> Findings:
    """Return all that is wrong with *settings* on this node, not only the first."""
    findings = Findings()
    if settings.web_config_file:
        check_web_config(Path(settings.web_config_file), findings)
    _check_listeners(settings, findings)
    if settings.ingest_token_file:
        _check_token(Path(settings.ingest_token_file), findings)
    if settings.events_file:
        file = Path(settings.events_file)
        findings.attempt(partial(places.check_appendable, file, "--events.file"))
    if settings.thresholds_file:
        findings.attempt(partial(_check_thresholds, Path(settings.thresholds_file)))
    for directory, file_name, flag in (
        (settings.path_procfs, "stat", "--path.procfs"),
        (settings.path_sysfs, "devices", "--path.sysfs"),
    ):
        findings.attempt(partial(places.check_mount, Path(directory), file_name, flag))
    if settings.path_state:
        places.check_state(Path(settings.path_state), "--path.state", findings)
    directory = settings.rank_nccl_directory
    if directory and not Path(directory).is_dir():
        findings.warnings.append(f"--collector.rank_nccl.directory: there is no {directory} yet")
    _check_gpus(settings, findings)
    return findings


def _check_listeners(settings: Settings, findings: Findings) -> None:
    address = settings.web_listen_address
    findings.attempt(partial(places.check_address, address, "--web.listen-address"))
    if settings.ingest_socket:
        path = Path(settings.ingest_socket)
        findings.attempt(partial(places.check_socket, path, "--ingest.socket"))
    if settings.ingest_listen_address:
        findings.attempt(
            partial(
                places.check_ingest_address,
                settings.ingest_listen_address,
                "--ingest.listen-address",
                bool(settings.ingest_token_file),
            )
        )
    if settings.operator_socket:
        orders = Findings()
        path = Path(settings.operator_socket)
        orders.attempt(partial(places.check_socket, path, "--operator.socket"))
        # The exporter starts without it, and takes no orders.
        findings.warnings.extend(orders.problems)


def _check_token(path: Path, findings: Findings) -> None:
    before = len(findings.problems)
    findings.attempt(partial(token_file.read, path, TOKEN_FLAG))
    if len(findings.problems) == before:
        findings.warnings.extend(token_file.exposures(path, TOKEN_FLAG))


def _check_thresholds(path: Path) -> None:
    try:
        read_overrides(path)
    except UsageError as error:
        raise UsageError(f"--thresholds.file: {error}") from error


def _check_gpus(settings: Settings, findings: Findings) -> None:
    """Warn if the driver lists another number of GPUs; NVML is not asked, because it can hang."""
    listed = Path(settings.path_procfs, "driver/nvidia/gpus")
    count = sum(1 for _ in listed.iterdir()) if listed.is_dir() else 0
    if settings.gpus_expected and count != settings.gpus_expected:
        findings.warnings.append(
            f"--gpus.expected is {settings.gpus_expected}, and the driver lists {count} GPUs here"
        )
