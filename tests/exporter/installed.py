"""Small installations: what lies where in a wheel, and in a checkout."""

from pathlib import Path

from exporter.bundle import PLACES

DIRECTORIES = (
    "alerts/rules",
    "alerts/runbooks",
    "dashboards",
    "deploy/prometheus",
    "deploy/slurm",
    "deploy/systemd",
)


def installed(kind: str, directory: Path) -> Path:
    """Return the package directory of a small installation: a wheel, or a checkout."""
    package = directory / "installed" / "exporter"
    names = {name: package / "bundled" / name for name in PLACES}
    if kind == "checkout":
        names = {name: package.parent / place for name, place in PLACES.items()}
    for name in DIRECTORIES:
        names[name].mkdir(parents=True)
        (names[name] / "one.txt").write_text(name)
    names["alerts/playbook.md"].parent.mkdir(parents=True, exist_ok=True)
    names["alerts/playbook.md"].write_text("# Playbook")
    names["alerts/advice.yaml"].write_text("causes: {}")
    names["alerts/alertmanager.yaml"].write_text("route: {}")
    names["alerts/notifications.tmpl"].write_text("{{ define }}")
    return package
