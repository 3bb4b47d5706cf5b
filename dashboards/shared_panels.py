"""Series, words and panels that several dashboards have."""

import re
from collections.abc import Mapping
from typing import Final

from dashboards.board import CLUSTER
from dashboards.links import to_runbook
from dashboards.panels import RED, Look, Panel, mapped, sentence
from exporter.vocabulary import words

_BUILDS: Final = "rankskew_exporter_build_info"
# What may stop a rank. The other faults slow it down, or say how its GPU is used.
STOPPING: Final = (
    "lost|recovery|memory|nvlink|fabric|xid|pcie_link|pcie_errors|nvlink_errors|pstate"
)
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
    """Return the increase of *counter*, in which its first value counts as growth too.

    A counter of what should not happen appears only when it first happens.
    """
    window = "$__rate_interval"
    before = f"last_over_time({counter}[1h] offset {window})"
    first = f"max_over_time({counter}[{window}]) > 0 unless {before}"
    return f"(increase({counter}[{window}]) > 0 or {first})"


def per_step(counter: str, selector: str, ranks: str, at: str = "") -> str:
    """Return the growth of *counter* per step; *selector* is for it, *ranks* for the steps."""
    window = f"[$__rate_interval]{at}"
    return (
        f"(rate({counter}{{{selector}}}{window}) / ignoring (phase, stage) group_left ()"
        f" (rate(rankskew_steps_total{{{ranks}}}{window}) > 0))"
    )


def coded(series: str, label: str, names: Mapping[str, object]) -> str:
    """Return *series* whose value is the place of its *label* in *names*, from 1 on.

    *series* is a selector. A lane needs one series whose value changes, not one per label value.
    """
    head, rest = series.split("{", 1)
    return " or ".join(
        f'0 * {head}{{{label}="{name}",{rest} + {number}'
        for number, name in enumerate(names, start=1)
    )


def labelled(series: str, label: str, words: str) -> str:
    """Return *series* with a *label* that says *words*, in which another {{label}} may stand."""
    names = re.findall(r"{{(\w+)}}", words)
    text = re.sub(r"{{\w+}}", "$1", words)
    of, pattern = (names[0], "(.+)") if names else ("", "")
    return f'label_replace({series}, "{label}", "{text}", "{of}", "{pattern}")'


def faults_of(ranks: str, selector: str) -> str:
    """Return the worst GPU fault of each of *ranks* that has one; *selector* is that of the ranks.

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


def alerts_panel(which: str, firing: str, quiet: str) -> Panel:
    """Return a panel of the *firing* alerts; *which* says whose, *quiet* is for when none fires."""
    name = f'label_replace({firing}, "name", "$1", "alertname", "Rankskew(.*)")'
    return sentence(
        "Alerts",
        f"Firing alerts {which}, without their prefix Rankskew. Click one for its runbook: "
        "what it means and what to do.",
        (f"count by (alertname, name) ({name})", "{{name}}", to_runbook()),
        (f"0 * {quiet}", "None", "text"),
        span=3,
        size=12,
        limits=[(RED, None)],
    )
