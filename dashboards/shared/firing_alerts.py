"""The figure that lists the firing alerts, on the dashboards of a job and of a rank."""

from grafana_foundation_sdk.builders import stat

from dashboards.shared.links import to_runbook
from dashboards.shared.panels import LATE_COLOUR, fixed, sentence_panel, shown, steps


def alerts_panel(which: str, firing: str, quiet: str) -> stat.Panel:
    """Return the alerts in *firing*; *which* says whose, *quiet* has a series if there are none."""
    name = f'label_replace({firing}, "name", "$1", "alertname", "Rankskew(.*)")'
    return shown(
        sentence_panel(
            "Alerts",
            f"Firing alerts {which}, without their prefix Rankskew. Click one for its runbook: "
            "what it means and what to do.",
            span=3,
            size=12,
        ).thresholds(steps((LATE_COLOUR, None))),
        (f"count by (alertname, name) ({name})", "{{name}}", [to_runbook()]),
        (f"0 * {quiet}", "None", [fixed("text")]),
    )
