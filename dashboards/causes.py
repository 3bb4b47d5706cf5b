"""Why a rank is late, as the exporter of its node says in rankskew_late_cause_info."""

from typing import Final

from dashboards.panels import Override
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
