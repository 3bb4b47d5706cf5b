"""Series, words and panels that several dashboards have."""

from collections.abc import Mapping
from typing import Final

from dashboards.board import CLUSTER
from dashboards.panels import (
    CELL,
    LATE_COLOUR,
    WRAP,
    Look,
    Panel,
    column,
    fixed,
    mapped,
    sentence,
    table,
    to_rank,
    to_runbook,
)
from exporter.vocabulary import words

_BUILDS: Final = "rankskew_exporter_build_info"
# What may stop a rank. The other faults slow it down, or say how its GPU is used.
STOPPING: Final = "lost|recovery|memory|nvlink|xid|pcie_link|pcie_errors|nvlink_errors|pstate"
# Joins the cause and the detail of a rank, as the label `why` of explained().
BETWEEN: Final = ":"


def seen(selector: str) -> str:
    """Return a series for each exporter that answered in the last six hours.

    RankskewExporterDown takes those for exporters that should answer now.
    """
    lately = f"last_over_time({_BUILDS}{{{selector}}}[6h])"
    return f"group by (cluster, job, instance) ({lately})"


EXPORTERS: Final = seen(CLUSTER)


def increase(counter: str) -> str:
    """Return what *counter* has grown by, where its first value is growth, too.

    A count of what should not happen appears only with the first of it.
    """
    window = "$__rate_interval"
    first = f"max_over_time({counter}[{window}]) > 0 unless {counter} offset {window}"
    return f"(increase({counter}[{window}]) > 0 or {first})"


def increase_per_second(counter: str) -> str:
    """Return increase() per second."""
    return f"1000 * {increase(counter)} / $__rate_interval_ms"


def coded(series: str, label: str, names: Mapping[str, object]) -> str:
    """Return *series* with the number of its *label* among *names* as its value, from 1 on.

    *series* is a selector. A lane needs one series, whose value changes; not one per label.
    """
    head, rest = series.split("{", 1)
    return " or ".join(
        f'0 * {head}{{{label}="{name}",{rest} + {number}'
        for number, name in enumerate(names, start=1)
    )


def faults_of(ranks: str, selector: str) -> str:
    """Return the worst fault of the GPU of each of *ranks*, which have one; *selector* is theirs.

    A GPU that is lost often has an XID error too; the loss comes first.
    """
    fault = f'rankskew_gpu_fault{{fault=~"{STOPPING}",{selector}}}'
    lost = f'rankskew_gpu_fault{{fault="lost",{selector}}}'
    each = "cluster, job_id, rank, fault"
    worst = f"0 * group by ({each}) ({lost}) + 2 or group by ({each}) ({fault})"
    return f"topk by (cluster, job_id, rank) (1, {worst}) and on (cluster, job_id, rank) {ranks}"


def explained(cause: str) -> str:
    """Return the series *cause* with a label `why`; WHY_IN_WORDS puts it into words."""
    return f'label_join({cause}, "why", "{BETWEEN}", "cause", "detail")'


WHY_IN_WORDS: Final[Look] = mapped(
    {
        f"{cause}{BETWEEN}{detail}": {"text": words.cause_in_short(cause, detail)}
        for cause, said in words.CAUSES.items()
        for detail in ("", *said.details)
    }
)


def in_short(series: str) -> str:
    """Return *series* with a cause's short name, instead of its name, in the label `cause`."""
    for cause, said in words.CAUSES.items():
        if said.short != cause:
            series = f'label_replace({series}, "cause", "{said.short}", "cause", "{cause}")'
    return series


def why_late(ranks: str, nothing: str) -> Panel:
    """Return why each of *ranks*, a selector, is late; *nothing* is said where none is."""
    why = explained(f"rankskew_late_cause_info{{{ranks}}}")
    figure = f'max by (cluster, rank) (rankskew_late_cause_figure{{of="%s",{ranks}}})'
    return table(
        "Why late",
        "The cause of each late rank, as the exporter on its node found it: a sentence with "
        "the figure of the rank and that of its peers, how much of its delay that explains, "
        "and what to do first. Not known: nothing that was measured accounts for half of it.",
        24,
        [
            f"max by (cluster, rank, why, sentence, first_action) ({why})",
            f"max by (cluster, rank) (rankskew_late_cause_share_ratio{{{ranks}}})",
            figure % "rank",
            figure % "peers",
            f"sum by (cluster, rank) (rank:rankskew_gpus_lost:sum{{{ranks}}})",
        ],
        {
            "rank": column("Rank", width=60) | to_rank(CELL),
            "why": column("Cause", width=180) | WHY_IN_WORDS | WRAP,
            "sentence": column("Because") | WRAP,
            "Value #B": column("Explains", "percentunit", 0, width=75),
            "Value #C": column("Figure", "sishort", width=75),
            "Value #D": column("Its peers'", "sishort", width=80),
            "first_action": column("Do first", width=500) | WRAP,
        },
        order="Value #E",
        key="rank",
        height=5,
        empty=nothing,
    )


def alerts_panel(which: str, firing: str, quiet: str) -> Panel:
    """Return the alerts in *firing*; *which* says whose, *quiet* has a series if there are none."""
    name = f'label_replace({firing}, "name", "$1", "alertname", "Rankskew(.*)")'
    return sentence(
        "Alerts",
        f"Firing alerts {which}, without their prefix Rankskew. Click one for its runbook: "
        "what it means and what to do.",
        3,
        12,
        (f"count by (alertname, name) ({name})", "{{name}}", to_runbook()),
        (f"0 * {quiet}", "None", fixed("text")),
        limits=[(LATE_COLOUR, None)],
    )
