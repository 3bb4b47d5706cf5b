"""Why a rank is late, as the exporter of its node says in rankskew_late_cause_info."""

from typing import Final

from grafana_foundation_sdk.builders import table

from dashboards.shared.links import CELL, to_rank
from dashboards.shared.panels import Override, column, rows, table_panel
from dashboards.shared.tables import keyed_table, wrap
from exporter.vocabulary import words

# Joins the cause and the detail of a rank, as the label `why` of explained().
BETWEEN: Final = ":"


def explained(cause: str) -> str:
    """Return the series *cause* with a label `why`; as_values() puts it into words."""
    return f'label_join({cause}, "why", "{BETWEEN}", "cause", "detail")'


def as_values() -> Override:
    """Return the override that puts cells with `why` into words."""
    options = {
        f"{cause}{BETWEEN}{detail}": {"text": words.cause_in_short(cause, detail)}
        for cause, said in words.CAUSES.items()
        for detail in ("", *said.details)
    }
    return Override(id_val="mappings", value=[{"type": "value", "options": options}])


def in_short(series: str) -> str:
    """Return *series* with a cause's short name, instead of its name, in the label `cause`."""
    for cause, said in words.CAUSES.items():
        if said.short != cause:
            series = f'label_replace({series}, "cause", "{said.short}", "cause", "{cause}")'
    return series


def why_late(ranks: str, nothing: str) -> table.Panel:
    """Return why each of *ranks*, a selector, is late; *nothing* is said where none is."""
    why = explained(f"rankskew_late_cause_info{{{ranks}}}")
    figure = f'max by (cluster, rank) (rankskew_late_cause_figure{{of="%s",{ranks}}})'
    panel = (
        table_panel(
            "Why late",
            "The cause of each late rank, as the exporter on its node found it: a sentence with "
            "the figure of the rank and that of its peers, how much of its delay that explains, "
            "and what to do first. Not known: nothing that was measured accounts for half of it.",
            "none",
            span=24,
        )
        .height(5)
        .no_value(nothing)
        .with_target(rows(f"max by (cluster, rank, why, sentence, first_action) ({why})", "A"))
        .with_target(
            rows(f"max by (cluster, rank) (rankskew_late_cause_share_ratio{{{ranks}}})", "B")
        )
        .with_target(rows(figure % "rank", "C"))
        .with_target(rows(figure % "peers", "D"))
        .with_target(rows(f"sum by (cluster, rank) (rank:rankskew_gpus_lost:sum{{{ranks}}})", "E"))
    )
    return keyed_table(
        panel,
        {
            "rank": [*column("Rank", width=60), to_rank(CELL)],
            "why": [*column("Cause", width=180), as_values(), *wrap()],
            "sentence": [*column("Because"), *wrap()],
            "Value #B": column("Explains", "percentunit", decimals=0, width=75),
            "Value #C": column("Figure", "sishort", width=75),
            "Value #D": column("Its peers'", "sishort", width=80),
            "first_action": [*column("Do first", width=500), *wrap()],
        },
        order="Value #E",
        key="rank",
    )
