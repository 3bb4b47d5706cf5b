"""The figures at the top of the rank dashboard: who it is, whether it is late, and why."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import stat
from grafana_foundation_sdk.models.common import BigValueTextMode

from dashboards.rank.series import THIS
from dashboards.shared.board import firing
from dashboards.shared.causes import in_short
from dashboards.shared.firing_alerts import alerts_panel
from dashboards.shared.links import LABEL, to_node
from dashboards.shared.panels import (
    LATE_COLOUR,
    PEERS_COLOUR,
    coloured_from,
    figure_size,
    fixed,
    instant,
    sentence_panel,
    shown,
    stat_panel,
    steps,
)
from dashboards.shared.states import GREEN, ORANGE
from dashboards.shared.variables import JOB, ONE_RANK

LATE: Final = f"rank:rankskew_late:ratio{{{ONE_RANK}}}"
SILENT: Final = f"rank:rankskew_silent_seconds:max{{{ONE_RANK}}}"
FINISHED: Final = f"rankskew_rank_finished{{{ONE_RANK}}}"
SUSPECT: Final = f"rank_stage:rankskew_hang_suspect:group{{{ONE_RANK}}}"
JUDGED: Final = f'job:rankskew_state:info{{state=~"healthy|rotating|straggler|slow_node",{JOB}}}'


def figures() -> Sequence[stat.Panel]:
    """Return the row of figures, left to right."""
    return (_who(), _doing(), _lost(), _since(), _cause(), _line(), _alerts())


def _who() -> stat.Panel:
    who = "cluster, job_id, rank, instance"
    gpu = f"topk by ({who}) (1, rankskew_gpu_rank_info{{{ONE_RANK}}})"
    process = f"{THIS} * on ({who}) group_left (gpu) {gpu} or on ({who}) {THIS}"
    return shown(
        sentence_panel(
            "Where it runs",
            "The node (by its exporter's address), the process (as its container sees it), and "
            "the number of its GPU there. Click the node for its dashboard.",
            span=4,
            size=14,
        ).thresholds(steps(("text", None))),
        (THIS, "{{instance}}", [to_node(LABEL % "instance")]),
        (process, "PID {{pid}} · GPU {{gpu}}", []),
        (f"absent({THIS})", "Unknown rank", [fixed(PEERS_COLOUR)]),
    )


def _doing() -> stat.Panel:
    on = "on (cluster, job_id, rank)"
    stuck = f"{SUSPECT} or {on} {SILENT} or {on} {FINISHED}"
    quiet = f"{THIS} unless {on} ({LATE} or {stuck})"
    known = f"and on (cluster, job_id) {JUDGED}"
    return shown(
        sentence_panel(
            "Now",
            "Whether the rank keeps up with its peers, is late (with the stage in which it fell "
            "behind), keeps its job waiting in a hang, is silent, or has finished. Grey: its job "
            "is not judged, so nobody can know.",
            span=4,
            size=18,
        ),
        (LATE, "late in {{stage}}", [fixed(LATE_COLOUR)]),
        (SUSPECT, "stuck: {{stage}}", [fixed(LATE_COLOUR)]),
        (f"{SILENT} unless {on} {SUSPECT}", "silent", [fixed(ORANGE)]),
        (FINISHED, "finished", [fixed(PEERS_COLOUR)]),
        (f"{quiet} {known}", "keeps up", [fixed(GREEN)]),
        (f"({quiet}) unless on (cluster, job_id) {JUDGED}", "not judged", [fixed(PEERS_COLOUR)]),
    )


def _lost() -> stat.Panel:
    return shown(
        stat_panel(
            "GPUs lost",
            "GPUs of the whole job that do nothing but wait for this rank, mean of the last "
            "minute. Nothing while it is not late.",
            "none",
            span=3,
        )
        .decimals(2)
        .no_value("–")
        .text(figure_size(20))
        .text_mode(BigValueTextMode.VALUE),
        (f"rank:rankskew_gpus_lost:sum{{{ONE_RANK}}}", "lost", coloured_from(0.05, LATE_COLOUR)),
    )


def _since() -> stat.Panel:
    since = f"rankskew_late_since_timestamp_seconds{{{ONE_RANK}}} * 1000"
    return shown(
        stat_panel(
            "Late since",
            "When the rank became late, by its node's clock. Nothing while it is not late.",
            "dateTimeFromNow",
            span=3,
        )
        .no_value("–")
        .text(figure_size(16))
        .text_mode(BigValueTextMode.VALUE),
        (since, "late", [fixed(LATE_COLOUR)]),
    )


def _cause() -> stat.Panel:
    cause = in_short(f"rankskew_late_cause_info{{{ONE_RANK}}}")
    return shown(
        sentence_panel(
            "Cause",
            "Why it is late, as the exporter on its node says; the table below has its sentence. "
            "Not known: nothing that was measured accounts for half of its delay.",
            span=3,
            size=14,
        ).thresholds(steps((LATE_COLOUR, None))),
        (cause, "{{cause}}", []),
        (f"0 * {THIS} unless on (cluster, job_id, rank) {LATE}", "–", [fixed(PEERS_COLOUR)]),
    )


def _line() -> stat.Panel:
    return (
        stat_panel(
            "In its code",
            "The line of your code in which the late rank's stack was found most often in the "
            "stage, and the share of the samples that found it there.",
            "percentunit",
            span=4,
        )
        .decimals(0)
        .no_value("–")
        .text(figure_size(14))
        .with_target(
            instant(f"topk(1, rankskew_late_line_ratio{{{ONE_RANK}}})", "{{place}} ({{stage}})")
        )
    )


def _alerts() -> stat.Panel:
    fire = firing(ONE_RANK)
    without = f"{THIS} unless on (cluster, job_id, rank) {fire}"
    return alerts_panel("that name this rank", fire, without)
