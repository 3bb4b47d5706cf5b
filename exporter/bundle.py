"""The rules, runbooks, dashboards and files of deployments that come with the code."""

from pathlib import Path
from typing import Final

from exporter.errors import StartError

PACKAGE: Final = Path(__file__).parent
# What is shipped, by its place in a wheel (exporter/bundled/...) and in a checkout.
PLACES: Final = {
    "alerts/rules": "alerts/rules",
    "alerts/runbooks": "alerts/runbooks",
    "alerts/playbook.md": "docs/playbook.md",
    "alerts/advice.yaml": "alerts/advice.yaml",
    "alerts/alertmanager.yaml": "alerts/alertmanager.yaml",
    "alerts/notifications.tmpl": "alerts/notifications.tmpl",
    "dashboards": "dashboards/json",
    "deploy/prometheus": "deploy/prometheus",
    "deploy/slurm": "deploy/slurm",
    "deploy/systemd": "deploy/systemd",
}


def bundled(name: str) -> Path:
    """Return where *name*, a key of PLACES, lies: in an installed wheel or in a checkout.

    Raises StartError when it lies in neither, which means that the installation is damaged.
    """
    for path in (PACKAGE / "bundled" / name, PACKAGE.parent / PLACES[name]):
        if path.exists():
            return path
    raise StartError(f"{name} is not in this installation: install rankskew again")
