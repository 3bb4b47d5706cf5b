"""Grafana dashboards as code; `python -m dashboards.build` writes them to dashboards/json."""

import warnings

# The SDK warns at import that a v2 model exists. Grafana 10 to 12 provision only the classic one.
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Prefer using dashboardv2", DeprecationWarning)
    import grafana_foundation_sdk.builders.dashboard
    import grafana_foundation_sdk.builders.stat  # noqa: F401 - imported here without their warning
