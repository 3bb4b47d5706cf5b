"""The figures at the top of the job dashboard: its state, the loss, who, since when, the alerts."""

from collections.abc import Sequence

from grafana_foundation_sdk.builders import stat
from grafana_foundation_sdk.models.common import BigValueTextMode

from dashboards.job.series import (
    FIRING,
    HUNG,
    JUDGE,
    ON_JOB,
    SINCE_LAST_STEP,
    STATE,
    figure_as,
    words,
)
from dashboards.job.who import in_state, since, who
from dashboards.shared.firing_alerts import alerts_panel
from dashboards.shared.panels import (
    LATE_COLOUR,
    PEERS_COLOUR,
    Override,
    coloured_from,
    figure_size,
    fixed,
    instant,
    sentence_panel,
    shown,
    stat_panel,
    steps,
)
from dashboards.shared.states import ORANGE, STATES, as_series
from dashboards.shared.timelines import coded
from dashboards.shared.variables import JOB
from exporter.vocabulary.words import REASONS


def figures() -> Sequence[stat.Panel]:
    """Return the row of figures, left to right."""
    return (
        _state(),
        _gpus_lost(),
        _lost_cost(),
        who(),
        since(),
        _step_time(),
        _judged(),
        _firing(),
    )


def _state() -> stat.Panel:
    panel = sentence_panel(
        "State",
        "What the job is doing, the most urgent first: hung, exporter down, ranks missing, "
        "starting, not judgeable, slow node, straggler, rotating (a different rank is late "
        "in each step), healthy, finished, or without the probe.",
        span=3,
        size=24,
    ).with_target(instant(STATE, "{{state}}"))
    panel.with_target(instant(f"absent({STATE})", "Unknown job", "B"))
    panel.override_by_query("B", [fixed(PEERS_COLOUR)])
    for state in STATES:
        panel.override_by_name(state, as_series(state))
    return panel


def _gpus_lost() -> stat.Panel:
    lost = f"job:rankskew_gpus_lost:sum{{{JOB}}}"
    of_all = f"job:rankskew_world_size:max{{{JOB}}}"
    share = f"({lost} / {of_all})"
    told = in_state(share, "hung|slow_node|straggler|rotating")
    return shown(
        sentence_panel(
            "GPUs lost",
            "GPUs that do nothing but wait for any reason, communication included, out of all "
            "GPUs of the job; mean of the last minute. In a hang all of them. Coloured if ranks "
            "are to blame, from 5 % of the job on in red.",
            span=3,
            size=24,
        ).thresholds(steps(("text", None), (ORANGE, 0.001), (LATE_COLOUR, 0.05))),
        (
            f"({told} or 0 * {share})"
            f" * {ON_JOB} group_left (lost) {figure_as('lost', f'round({lost}, 0.1)')}"
            f" * {ON_JOB} group_left (all) {figure_as('all', of_all)}",
            "{{lost}} of {{all}}",
            [],
        ),
        (f"0 * {STATE} unless {ON_JOB} {share}", "–", []),
    )


def _lost_cost() -> stat.Panel:
    return (
        stat_panel(
            "Cost / h",
            "US$ per hour for GPUs that do nothing but wait, for any reason: GPUs lost times the "
            "price of a GPU hour; nothing until you record one.",
            "currencyUSD",
            span=2,
        )
        .decimals(2)
        .no_value("–")
        .text_mode(BigValueTextMode.VALUE)
        .text(figure_size(20))
        .with_target(instant(f"job:rankskew_lost_cost_per_hour:sum{{{JOB}}}", "lost per hour"))
    )


def _step_time() -> stat.Panel:
    return shown(
        stat_panel(
            "Step",
            "Mean time from one release to the next, that time divided by the time without the "
            "late ranks, and the time since any rank finished a step. A step takes equally long "
            "on every rank, so the step time shows that a job is slow, but never which rank "
            "causes it.",
            "s",
            span=3,
        )
        .text(figure_size(16))
        .no_value("–"),
        (f"job:rankskew_step_seconds:max{{{JOB}}} unless {HUNG}", "takes", []),
        (
            f"job:rankskew_slowdown:max{{{JOB}}} unless {HUNG}",
            "slowdown",
            [
                Override(id_val="unit", value="suffix:×"),
                Override(id_val="decimals", value=2),
                *coloured_from(1.01, LATE_COLOUR),
            ],
        ),
        (f"{SINCE_LAST_STEP} > 10", "since the last", coloured_from(60, LATE_COLOUR)),
    )


def _judged() -> stat.Panel:
    judged = f"job:rankskew_coverage:ratio{{{JOB}}}"
    reasons = f"job_reason:rankskew_not_judgeable:bool{{{JOB}}}"
    # The first of several explains the others.
    reason = f"bottomk(1, {coded(reasons, 'reason', REASONS)})"
    sourced = f"{judged} * {ON_JOB} group_left (judge) {JUDGE} or {ON_JOB} {judged}"
    valid = f"({sourced}) unless {ON_JOB} ({HUNG} or {reasons})"
    return shown(
        stat_panel(
            "Judged",
            "Share of the job's ranks that are judged, 0 if it hangs or cannot be judged, and "
            "the reason. By join: the ranks compare their steps one by one. By node: each exporter "
            "compares means over half a minute of the ranks on its own node, which shows little "
            "except a rank that is late all the time. Without either, the absence of alerts says "
            "nothing.",
            "percentunit",
            span=2,
        )
        .thresholds(steps(("text", None), (ORANGE, 0.0), ("text", 0.995)))
        .text(figure_size(18))
        .no_value("–"),
        (f'label_replace({valid}, "by", "by $1", "judge", "(.+)")', "{{by}}", []),
        (f"0 * {words(reason, 'reason')}", "{{reason}}", [fixed(ORANGE)]),
        (f"0 * {HUNG} unless {ON_JOB} {reasons}", "it hangs", []),
    )


def _firing() -> stat.Panel:
    return alerts_panel("of this job", FIRING, f"{STATE} unless {ON_JOB} {FIRING}")
