"""Links from one dashboard to another, and to the runbooks; rows that know where they lead."""

from collections.abc import Sequence
from typing import Final

from dashboards.panels import Look

RUNBOOKS_URL: Final = "https://github.com/rankskew/rankskew/blob/main/alerts/runbooks"
# The labels that tell rows apart: two clusters behind one data source may have jobs of one name.
JOB_KEY: Final = ("cluster", "job_id")
NODE_KEY: Final = ("cluster", "instance")
RANK_KEY: Final = ("cluster", "job_id", "rank")

# The value of a label of the series that was clicked, of a field in the row of a table, or of the
# cell itself.
LABEL: Final = "${__field.labels.%s}"
FIELD: Final = '${__data.fields["%s"]}'
CELL: Final = "${__value.raw}"
# What a link keeps of the dashboard that it is on, and what it takes from the row of a table.
KEPT: Final = "${datasource:queryparam}&${__url_time_range}"
SAME_CLUSTER: Final = f"{KEPT}&${{cluster:queryparam}}"
SAME_JOB: Final = f"{SAME_CLUSTER}&${{job_id:queryparam}}"
ITS_CLUSTER: Final = f"{KEPT}&var-cluster=${{__data.fields.to_cluster}}"
ITS_JOB: Final = f"{ITS_CLUSTER}&var-job_id=${{__data.fields.job_id}}"


def uid(key: str) -> str:
    """Return the fixed part of a dashboard's address."""
    return f"rankskew-{key}"


def link(title: str, url: str, new_tab: bool = False) -> Look:
    """Return a look with a link."""
    return {"links": [{"title": title, "url": url, "targetBlank": new_tab}]}


def to_rank(rank: str) -> Look:
    """Return a link from a dashboard with a job to one of its ranks."""
    return link("Open this rank", f"/d/{uid('rank')}?{SAME_JOB}&var-rank={rank}")


def to_node(instance: str) -> Look:
    """Return a link to a node."""
    return link("Open this node", f"/d/{uid('node')}?{SAME_CLUSTER}&var-instance={instance}")


def to_runbook(alertname: str = LABEL % "alertname") -> Look:
    """Return a link to what to do about an alert."""
    return link("Open the runbook", f"{RUNBOOKS_URL}/{alertname}.md", new_tab=True)


# From a cell to the job, the rank and the node of its row; see linked().
JOB: Final = link("Job ${__data.fields.job_id}", f"/d/{uid('job')}?{ITS_JOB}")
RANK: Final = link(
    "Rank ${__data.fields.rank} of ${__data.fields.job_id}",
    f"/d/{uid('rank')}?{ITS_JOB}&var-rank=${{__data.fields.rank}}",
)
NODE: Final = link(
    "Node ${__data.fields.instance}",
    f"/d/{uid('node')}?{ITS_CLUSTER}&var-instance=${{__data.fields.instance}}",
)


def keyed(expr: str, key: Sequence[str], *kept: str) -> str:
    """Return one value of *expr* for each `key`, made of those labels, and the labels *kept*."""
    names = ", ".join(f'"{label}"' for label in key)
    labels = ", ".join(("key", *kept))
    return f'max by ({labels}) (label_join({expr}, "key", "/", {names}))'


def linked(expr: str, key: Sequence[str]) -> str:
    """Return *expr* with the label `key`, and with `to_cluster`, where a link finds the cluster.

    `to_cluster` is All for series without a cluster: a link cannot use a field that does not exist.
    """
    names = ", ".join(f'"{label}"' for label in key)
    series = f'label_join(({expr}), "key", "/", {names})'
    unnamed = f'label_replace({series}, "to_cluster", "All", "cluster", "")'
    return f'label_replace({unnamed}, "to_cluster", "$1", "cluster", "(.+)")'
