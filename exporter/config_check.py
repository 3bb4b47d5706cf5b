"""Checks the files that the exporter reads when it starts, and opens nothing for good."""

import os
from collections.abc import Iterator
from pathlib import Path

from exporter.errors import StartError, UsageError
from exporter.ingest import token_file
from exporter.settings import Settings
from exporter.vocabulary.thresholds import read_overrides
from exporter.web.config import read_web_config

TOKEN_FLAG = "--ingest.token-file"


def problems(settings: Settings) -> Iterator[str]:
    """Yield all that keeps the exporter from starting with *settings*, not only the first."""
    if settings.web_config_file:
        yield from read_web_config(Path(settings.web_config_file)).problems
    if settings.ingest_token_file:
        try:
            token_file.read(Path(settings.ingest_token_file), TOKEN_FLAG)
        except (UsageError, StartError) as error:
            yield str(error)
    if settings.thresholds_file:
        try:
            read_overrides(Path(settings.thresholds_file))
        except (UsageError, StartError) as error:
            yield f"--thresholds.file: {error}"
    for directory, file, flag in (
        (settings.path_procfs, "stat", "--path.procfs"),
        (settings.path_sysfs, "devices", "--path.sysfs"),
    ):
        if not Path(directory, file).exists():
            yield f"{flag}: {directory} has no {file}, so nothing is mounted there"


def warnings(settings: Settings) -> Iterator[str]:
    """Yield what is amiss although the exporter can start; NVML is not asked, as it can hang."""
    token, state = Path(settings.ingest_token_file), Path(settings.path_state)
    if settings.ingest_token_file and token.is_file():
        yield from token_file.exposures(token, TOKEN_FLAG)
    if settings.path_state and not (state.is_dir() and os.access(state, os.W_OK | os.X_OK)):
        yield (
            f"--path.state: {state} is not a directory that this user may write to, so a GPU that "
            "is lost while the exporter restarts is not noticed: create it, or pass --gpus.expected"
        )
    listed = Path(settings.path_procfs, "driver/nvidia/gpus")
    count = sum(1 for _ in listed.iterdir()) if listed.is_dir() else 0
    if settings.gpus_expected and count != settings.gpus_expected:
        yield (
            f"--gpus.expected is {settings.gpus_expected}, and the driver lists {count} GPUs here"
        )
