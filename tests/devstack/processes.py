"""Tell whether a process still runs."""

import psutil


def runs(process: psutil.Process) -> bool:
    """Say whether *process* runs; a container's init may leave an ended orphan as a zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
