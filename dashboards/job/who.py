"""The figures of the job dashboard that name somebody: who is waited for, and since when."""

from typing import Final

from grafana_foundation_sdk.builders import stat

from dashboards.job.series import (
    HUNG,
    LATE_SINCE,
    ON_JOB,
    RANK,
    SILENT,
    STATE,
    SUSPECT,
    TOLD,
    figure_as,
    words,
)
from dashboards.shared.causes import in_short
from dashboards.shared.faults import faults_of
from dashboards.shared.links import LABEL, to_node, to_rank
from dashboards.shared.panels import (
    LATE_COLOUR,
    PEERS_COLOUR,
    figure_size,
    fixed,
    instant,
    sentence_panel,
    stat_panel,
    steps,
)
from dashboards.shared.states import GREEN, ORANGE
from dashboards.shared.variables import JOB

# There is room for this many names.
NAMED: Final = 2
RANKS: Final = 'rank!=""'
NODES: Final = 'rank=""'


def in_state(series: str, states: str) -> str:
    """Return *series* while the job is in one of *states*, a regular expression."""
    chosen = STATE.replace("{", f'{{state=~"{states}",', 1)
    return f"({series}) and {ON_JOB} {chosen}"


def who() -> stat.Panel:
    """Return whom the job waits for, whatever its state."""
    ranks, nodes = (in_short(TOLD % each) for each in (RANKS, NODES))
    silent = f"topk by (cluster, job_id) ({NAMED}, {SILENT})"
    down = f"topk by (cluster, job_id) ({NAMED}, node:rankskew_exporter_down:group{{{JOB}}})"
    missing = _counted(figure_as("ranks", f"job:rankskew_ranks_missing:sum{{{JOB}}}"))
    count = f"count by (cluster, job_id) ({TOLD % RANKS}) - {NAMED} > 0"
    stuck = f"{HUNG} unless {ON_JOB} {SUSPECT}"
    on_rank = "on (cluster, job_id, rank)"
    gpu = faults_of(SUSPECT, JOB)
    broken = f'label_replace({gpu}, "cause", " · GPU $1", "fault", "(.+)")'
    explained = f"{SUSPECT} * {on_rank} group_left (cause) {words(broken, 'cause')}"
    named = {
        "A": (f"topk by (cluster, job_id) ({NAMED}, {ranks})", "straggler|slow_node"),
        "B": (f"topk by (cluster, job_id) ({NAMED}, {nodes})", "straggler|slow_node"),
        "C": (figure_as("more", count), "straggler|slow_node"),
        "D": (f"({explained}) or {on_rank} {SUSPECT}", "hung"),
        "E": (stuck, "hung"),
        "F": (down, "exporter_down"),
        "G": (silent, "ranks_missing"),
        "H": (missing, "ranks_missing"),
        "N": (_all_silent(), "ranks_missing"),
    }
    legends = {
        "A": "rank {{rank}} · {{stage}} · {{cause}}",
        "B": "node {{nodename}} · {{stage}} · {{cause}}",
        "C": "and {{more}} more",
        "D": "rank {{rank}} · {{stage}}{{cause}}",
        "E": "all wait in a collective",
        "F": "exporter of {{instance}}",
        "G": "rank {{rank}} is silent",
        "H": "{{ranks}} not seen",
        "I": "Nobody",
        "J": "a different rank in each step",
        "K": "not known yet",
        "L": "cannot be known",
        "M": "–",
        "N": "all {{ranks}} ranks are silent",
    }
    others = {
        "I": ("healthy", GREEN),
        "J": ("rotating", ORANGE),
        "K": ("starting", PEERS_COLOUR),
        "L": ("not_judgeable|no_probe", PEERS_COLOUR),
        "M": ("finished", PEERS_COLOUR),
    }
    panel = sentence_panel(
        "Who",
        "Whom the job waits for. Late ranks: the two costliest with the stage in which they "
        "fell behind and the cause, as their exporters found it. A slow node: its name instead. "
        "In a hang: the rank that is not in the collective, where it is, and a fault of its GPU. "
        "Grey: nobody can know. Click for more.",
        span=6,
        size=20,
    ).thresholds(steps((LATE_COLOUR, None)))
    for ref, (series, states) in named.items():
        panel.with_target(instant(in_state(series, states), legends[ref], ref))
    for ref, (states, colour) in others.items():
        panel.with_target(instant(in_state(STATE, states), legends[ref], ref))
        panel.override_by_query(ref, [fixed(colour)])
    for ref in "FGHN":
        panel.override_by_query(ref, [fixed(ORANGE)])
    for ref in "ADG":
        panel.override_by_query(ref, [to_rank(LABEL % "rank")])
    for ref in "BF":
        panel.override_by_query(ref, [to_node(LABEL % "instance")])
    return panel


def _counted(series: str) -> str:
    """Return *series* with its number of `ranks` in words: 1 rank, 4 ranks."""
    many = f'label_replace({series}, "ranks", "$1 ranks", "ranks", "(.+)")'
    return f'label_replace({many}, "ranks", "1 rank", "ranks", "1 ranks")'


def _all_silent() -> str:
    """Return how many ranks a job had of which none reports any more."""
    ranks = 'sum by (cluster, job_id) (rankskew_node_ranks{state="%s",%s})'
    silent, beating = (ranks % (state, JOB) for state in ("silent", "beating"))
    return figure_as("ranks", f"({silent} > 0 unless {ON_JOB} {beating} > 0)")


def since() -> stat.Panel:
    """Return since when the job has been waiting, or else since when it runs."""
    late = f"{LATE_SINCE} and {RANK} rank:rankskew_told_gpus_lost:sum{{{JOB}}}"
    ago = {
        "A": (f"min by (cluster, job_id) ({late})", "straggler|slow_node", "late"),
        "B": (_ago(HUNG), "hung", "hung"),
        "C": (_ago(f"max by (cluster, job_id) ({SILENT})"), "ranks_missing", "silent"),
        "D": (_ago(f"job:rankskew_starting_seconds:max{{{JOB}}}"), "starting", "began"),
        "E": (
            _ago(f"job:rankskew_run_seconds:max{{{JOB}}}"),
            "healthy|rotating|not_judgeable",
            "started",
        ),
    }
    panel = (
        stat_panel(
            "Since",
            "When the ranks became late, by their nodes' clocks, when the hang or the silence "
            "began, or else when the job started.",
            "dateTimeFromNow",
            span=2,
        )
        .no_value("–")
        .text(figure_size(12))
    )
    for ref, (series, states, legend) in ago.items():
        panel.with_target(instant(in_state(series, states), legend, ref))
    for ref in "AB":
        panel.override_by_query(ref, [fixed(LATE_COLOUR)])
    return panel.override_by_query("C", [fixed(ORANGE)])


def _ago(seconds: str) -> str:
    return f"(time() - {seconds}) * 1000"
