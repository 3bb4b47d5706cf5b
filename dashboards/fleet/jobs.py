"""The table of all jobs: hung ones first, then what cannot be judged, then by GPUs lost."""

from typing import Final

from grafana_foundation_sdk.builders import table

from dashboards.fleet.series import (
    ANY_STATE,
    CAUSE,
    COST,
    HUNG,
    JOB,
    LATE,
    LOST,
    RANK,
    RANK_LOST,
    STATE,
    SUSPECT,
    UNPROBED,
    WORLD,
)
from dashboards.shared.causes import in_short
from dashboards.shared.faults import faults_of
from dashboards.shared.panels import Override, column, rows, table_panel
from dashboards.shared.states import STATES
from dashboards.shared.tables import (
    JOB_KEY,
    job_link,
    keyed,
    keyed_table,
    linked,
    marked,
    rank_link,
)
from dashboards.shared.timelines import coded
from dashboards.shared.variables import CLUSTER
from exporter.vocabulary.words import REASONS

EACH: Final = "by (cluster, job_id)"
UNKNOWN: Final = "exporter_down|ranks_missing|not_judgeable"
# A late rank of a healthy job is not worth anybody's time; the job's own dashboard shows it.
LATE_UNWELL: Final = f"({LATE} unless {JOB} {STATE % 'healthy'})"
# Of each job the rank that costs most, or any late one if no wait was measured.
WORST: Final = f"topk {EACH} (1, {RANK_LOST} or {RANK} 0 * {LATE})"
WORST_LATE: Final = f"topk {EACH} (1, {LATE_UNWELL} and {RANK} {WORST})"


def jobs() -> table.Panel:
    """Return one row for each job."""
    panel = (
        table_panel(
            "Jobs",
            "Every job with its state: jobs that hang first, then those that cannot be judged, "
            "then by GPUs lost. The rank, or the node, is the costliest that the job waits for; "
            "the cause is also the reason why a job cannot be judged. A click on a job or a rank "
            "opens its dashboard.",
            "none",
            span=24,
        )
        .height(12)
        .no_value("No job")
        .with_target(rows(linked(keyed(f"({_order()})", JOB_KEY)), "A"))
        .with_target(rows(_of_job(LOST), "B"))
        .with_target(rows(_of_job(f"({WORLD} or {UNPROBED})"), "C"))
        .with_target(rows(_of_job(COST), "D"))
        .with_target(rows(f"group by (key, rank, who) ({keyed(_who(), JOB_KEY)})", "E"))
        .with_target(rows(f"group by (key, cause) ({keyed(_cause(), JOB_KEY)})", "F"))
        .with_target(rows(_of_job(_since()), "G"))
        .with_target(rows(_of_job(_slowdown()), "H"))
        .with_target(rows(_of_job(_judged()), "I"))
    )
    fields = {
        "state": [*column("State", width=115), *marked(STATES)],
        "job_id": [*column("Job"), job_link()],
        "Value #B": column("GPUs lost", "none", decimals=1, width=90),
        "Value #C": column("Of", "none", decimals=0, width=70),
        "Value #D": column("Cost/h", "currencyUSD", decimals=0, width=85),
        "who": [*column("Waits for", width=200), rank_link()],
        "cause": [*column("Cause or reason", width=330), _reasons_in_words()],
        "Value #G": column("Since", "dateTimeFromNow", width=130),
        "Value #H": column("Slowdown", "suffix:×", decimals=2, width=90),
        "Value #I": column("Judged", "percentunit", decimals=0, width=80),
    }
    return keyed_table(panel, fields, order="Value #A", hidden=("rank", "to_cluster"))


def _reasons_in_words() -> Override:
    words = {name: {"text": reason.short} for name, reason in REASONS.items()}
    return Override(id_val="mappings", value=[{"type": "value", "options": words}])


def _of_job(series: str) -> str:
    return f"max by (key) ({keyed(series, JOB_KEY)})"


def _order() -> str:
    urgency = (
        f"1e9 * {STATE % 'hung'} or 1e6 * {_in(UNKNOWN)} or -1 * {_in('starting|no_probe')}"
        f" or -2 * {STATE % 'finished'} or 0 * {ANY_STATE}"
    )
    return f"({urgency}) + {JOB} group_left () {LOST} or ({urgency})"


def _slowdown() -> str:
    """Return how much longer steps take; a job that hangs finishes none."""
    return f"(job:rankskew_slowdown:max{{{CLUSTER}}} unless {JOB} {HUNG})"


def _who() -> str:
    suspect = _named("rank $1", "rank", SUSPECT)
    rotating = f"job_stage:rankskew_gpus_lost:sum{{{CLUSTER}}} and {JOB} {STATE % 'rotating'}"
    turns = _named("different ranks", "job_id", f"topk {EACH} (1, {rotating})")
    kind = f'label_join({_named("rank $1", "rank", WORST_LATE)}, "where", "/", "kind", "nodename")'
    late = f'label_replace({kind}, "who", "node $1", "where", "node/(.+)")'
    either = f"{suspect} or {JOB} {turns} or {JOB} {late}"
    return f'label_join(({either}), "who", " · ", "who", "stage")'


def _named(words: str, label: str, series: str) -> str:
    return f'label_replace({series}, "who", "{words}", "{label}", "(.+)")'


def _cause() -> str:
    down = f"topk {EACH} (1, node:rankskew_exporter_down:group{{{CLUSTER}}})"
    missing = _counted(f"job:rankskew_ranks_missing:sum{{{CLUSTER}}}", "not seen")
    silent = _counted(
        f"count {EACH} (rank:rankskew_silent_seconds:max{{{CLUSTER}}})"
        # Where all are, none is told of the others.
        f' or sum {EACH} (rankskew_node_ranks{{state="silent",{CLUSTER}}} > 0)',
        "gone silent",
    )
    reasons = f"job_reason:rankskew_not_judgeable:bool{{{CLUSTER}}}"
    reason = f"bottomk {EACH} (1, {coded(reasons, 'reason', REASONS)})"
    of_late = f"topk {EACH} (1, {CAUSE} and {RANK} {WORST_LATE})"
    gpu = faults_of(SUSPECT, CLUSTER)
    parts = (
        _worded("GPU: $1", "fault", gpu),
        f"{_worded('no exporter on $1', 'instance', down)} and {JOB} {_in('exporter_down')}",
        f"({missing} or {JOB} {silent}) and {JOB} {_in('ranks_missing')}",
        f"{_worded('$1', 'reason', reason)} and {JOB} {_in('starting|not_judgeable')}",
        _because(of_late),
    )
    return "(" + f" or {JOB} ".join(f"({part})" for part in parts) + ")"


def _because(of_late: str) -> str:
    """Return the short name of the cause and the exporter's sentence, where there is one."""
    both = f'label_join({in_short(of_late)}, "cause", ": ", "cause", "sentence")'
    return f'label_replace({both}, "cause", "$1", "cause", "(.*): ")'


def _counted(counts: str, words: str) -> str:
    numbers = f'count_values {EACH} ("number", {counts})'
    many = _worded(f"$1 ranks {words}", "number", numbers)
    return f'label_replace({many}, "cause", "1 rank {words}", "number", "1")'


def _worded(words: str, label: str, series: str) -> str:
    return f'label_replace({series}, "cause", "{words}", "{label}", "(.+?)(:[0-9]+)?")'


def _since() -> str:
    late = f"rankskew_late_since_timestamp_seconds{{{CLUSTER}}} and {RANK} {WORST_LATE}"
    starting = f"time() - job:rankskew_starting_seconds:max{{{CLUSTER}}}"
    silent = f"time() - max {EACH} (rank:rankskew_silent_seconds:max{{{CLUSTER}}})"
    either = f" or {JOB} ".join((f"time() - {HUNG}", silent, f"min {EACH} ({late})", starting))
    return f"1000 * ({either})"


def _judged() -> str:
    """Return the share that is judged, of the jobs that are judged at all."""
    unjudged = _in("hung|starting|not_judgeable")
    return f"(job:rankskew_coverage:ratio{{{CLUSTER}}} unless {JOB} {unjudged})"


def _in(states: str) -> str:
    return f'job:rankskew_state:info{{state=~"{states}",{CLUSTER}}}'
