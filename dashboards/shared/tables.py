"""Tables of jobs, ranks or nodes: rows with a key of several labels, and links from their cells."""

from collections.abc import Mapping, Sequence
from typing import Final

from grafana_foundation_sdk.builders import table

from dashboards.shared.board import uid
from dashboards.shared.panels import LATE_COLOUR, Override, transformation
from dashboards.shared.states import BLUE, ORANGE

# Two clusters behind one data source may have jobs or nodes of one name.
JOB_KEY: Final = ("cluster", "job_id")
NODE_KEY: Final = ("cluster", "instance")
RANK_KEY: Final = ("cluster", "job_id", "rank")

AS_TEXT: Final = Override(id_val="custom.cellOptions", value={"type": "color-text"})
SEVERITIES: Final = {
    "critical": ("Critical", LATE_COLOUR),
    "warning": ("Warning", ORANGE),
    "info": ("Info", BLUE),
}

KEEP: Final = "${datasource:queryparam}&${__url_time_range}"
CLUSTER: Final = "var-cluster=${__data.fields.to_cluster}"
JOB: Final = f"{CLUSTER}&var-job_id=${{__data.fields.job_id}}"


def keyed(expr: str, labels: Sequence[str]) -> str:
    """Return *expr* with the label `key`, made of *labels*."""
    names = ", ".join(f'"{label}"' for label in labels)
    return f'label_join({expr}, "key", "/", {names})'


def linked(expr: str) -> str:
    """Return *expr* with the label `to_cluster`: what a link sets the variable cluster to.

    It is All where series have no cluster: a field that does not exist cannot be in a link.
    """
    unnamed = f'label_replace({expr}, "to_cluster", "All", "cluster", "")'
    return f'label_replace({unnamed}, "to_cluster", "$1", "cluster", "(.+)")'


def keyed_table(
    panel: table.Panel,
    fields: Mapping[str, Sequence[Override]],
    order: str,
    hidden: Sequence[str] = (),
    key: str = "key",
) -> table.Panel:
    """Join a panel's queries on their *key* and show *fields*, in that order.

    *order* is the field by which rows are sorted: values from the largest on, a label, such as
    the index of a GPU, from the smallest number on. *hidden* fields are for links.
    """
    names = {"names": list(dict.fromkeys([key, *fields, *hidden, order]))}
    place = {name: position for position, name in enumerate([*fields, *hidden])}
    unseen = {name: True for name in (key, order) if name not in place}
    panel.with_transformation(transformation("filterFieldsByName", {"include": names}))
    panel.with_transformation(transformation("joinByField", {"byField": key, "mode": "outer"}))
    by_value = order.startswith("Value")
    if not by_value:  # As text, 10 would come before 9.
        number = {"targetField": order, "destinationType": "number"}
        panel.with_transformation(transformation("convertFieldType", {"conversions": [number]}))
    panel.with_transformation(
        transformation("sortBy", {"fields": {}, "sort": [{"field": order, "desc": by_value}]})
    )
    panel.with_transformation(
        transformation(
            "organize", {"indexByName": place, "excludeByName": unseen, "renameByName": {}}
        )
    )
    # The panel's own text for no data would fill every empty cell.
    empty = Override(id_val="noValue", value="")
    for name, overrides in fields.items():
        panel.override_by_name(name, [empty, *overrides])
    for name in hidden:
        panel.override_by_name(name, hide())
    return panel


def hide() -> list[Override]:
    """Return overrides that keep a column out of sight, for Grafana before and since 12.2."""
    return [
        Override(id_val="custom.hidden", value=True),
        Override(id_val="custom.hideFrom", value={"viz": True, "legend": True, "tooltip": True}),
    ]


def wrap() -> list[Override]:
    """Return overrides that show all of a column's text, for Grafana before and since 12.2."""
    return [
        Override(id_val="custom.cellOptions", value={"type": "auto", "wrapText": True}),
        Override(id_val="custom.wrapText", value=True),
    ]


def job_link() -> Override:
    """Return an override that leads from a cell to the row's job."""
    return link("Job ${__data.fields.job_id}", "job", JOB)


def rank_link() -> Override:
    """Return an override that leads from a cell to the row's rank."""
    return link(
        "Rank ${__data.fields.rank} of ${__data.fields.job_id}",
        "rank",
        f"{JOB}&var-rank=${{__data.fields.rank}}",
    )


def node_link() -> Override:
    """Return an override that leads from a cell to the row's node."""
    return link(
        "Node ${__data.fields.instance}",
        "node",
        f"{CLUSTER}&var-instance=${{__data.fields.instance}}",
    )


def link(title: str, board: str, variables: str) -> Override:
    """Return an override that leads to a dashboard with *variables*, for the same time."""
    url = f"/d/{uid(board)}?{KEEP}&{variables}"
    return Override(id_val="links", value=[{"title": title, "url": url}])


def marked(words: Mapping[str, tuple[str, str]]) -> list[Override]:
    """Return overrides that write values as *words*, each in its colour."""
    options = {
        value: {"text": text, "color": colour, "index": index}
        for index, (value, (text, colour)) in enumerate(words.items())
    }
    return [Override(id_val="mappings", value=[{"type": "value", "options": options}]), AS_TEXT]
