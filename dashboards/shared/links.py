"""Links from what a panel shows to the dashboard or the runbook that says more about it."""

from typing import Final

from dashboards.shared.board import uid
from dashboards.shared.panels import RUNBOOKS_URL, Override

# The value of a label of the series that was clicked, of a field in the row of a table, or of the
# cell itself.
LABEL: Final = "${__field.labels.%s}"
FIELD: Final = '${__data.fields["%s"]}'
CELL: Final = "${__value.raw}"

_KEPT: Final = "${datasource:queryparam}&${__url_time_range}"
_CLUSTER: Final = f"{_KEPT}&${{cluster:queryparam}}"
_JOB: Final = f"{_CLUSTER}&${{job_id:queryparam}}"


def to_rank(rank: str) -> Override:
    """Return a link from a dashboard with a job to one of its ranks."""
    return _link("Open this rank", f"/d/{uid('rank')}?{_JOB}&var-rank={rank}")


def to_node(instance: str) -> Override:
    """Return a link to a node."""
    return _link("Open this node", f"/d/{uid('node')}?{_CLUSTER}&var-instance={instance}")


def to_runbook(alertname: str = LABEL % "alertname") -> Override:
    """Return a link to what to do about an alert."""
    return _link("Open the runbook", f"{RUNBOOKS_URL}/{alertname}.md", new_tab=True)


def _link(title: str, url: str, new_tab: bool = False) -> Override:
    return Override(id_val="links", value=[{"title": title, "url": url, "targetBlank": new_tab}])
