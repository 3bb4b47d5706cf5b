"""The figures at the top of the job dashboard: how bad it is, which ranks, since when."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import stat
from grafana_foundation_sdk.models.common import BigValueTextMode

from dashboards.job_series import (
    FIRING,
    LATE,
    LATE_SINCE,
    LOST,
    RANK,
    SINCE_LAST_STEP,
    SOURCE,
)
from dashboards.panels import (
    LATE_COLOUR,
    Override,
    coloured_from,
    fixed,
    instant,
    stat_panel,
    steps,
)
from dashboards.variables import JOB

# The figures at the top have room for this many late ranks.
COSTLIEST: Final = f"topk(2, {LOST})"


def figures() -> Sequence[stat.Panel]:
    """Return the row of figures, left to right."""
    return (
        _gpus_lost(),
        _lost_cost(),
        _who(),
        _since(),
        _step_time(),
        _judged(),
        _firing(),
    )


def _gpus_lost() -> stat.Panel:
    return (
        stat_panel(
            "GPUs lost now",
            "GPUs that do nothing but wait, mean of the last minute: for late ranks, and for any "
            "reason (including communication), out of all GPUs of the job.",
            "none",
            span=4,
        )
        .decimals(2)
        .no_value("No rank judged")
        .with_target(
            instant(
                f'job_kind:rankskew_gpus_lost:sum{{kind="persistent",{JOB}}}',
                "late ranks",
                "A",
            )
        )
        .with_target(instant(f"job:rankskew_gpus_lost:sum{{{JOB}}}", "any wait", "B"))
        .with_target(instant(f"job:rankskew_world_size:max{{{JOB}}}", "of all", "C"))
        .override_by_query("A", coloured_from(0.05, LATE_COLOUR))
        .override_by_query("C", [Override(id_val="decimals", value=0)])
    )


def _lost_cost() -> stat.Panel:
    return (
        stat_panel(
            "Cost",
            "US$ per hour for GPUs that do nothing but wait, for any reason: GPUs lost times the "
            "price of a GPU hour, a default price until you record your own.",
            "currencyUSD",
            span=2,
        )
        .decimals(2)
        .no_value("–")
        .with_target(instant(f"job:rankskew_lost_cost_per_hour:sum{{{JOB}}}", "lost per hour"))
    )


def _who() -> stat.Panel:
    return (
        stat_panel(
            "Late ranks now",
            "The two costliest ranks that the job waits for, each with the stage in which it "
            "fell behind its peers and the number of GPUs that wait for it.",
            "none",
            span=4,
        )
        .decimals(2)
        .thresholds(steps((LATE_COLOUR, None)))
        .no_value("None")
        .with_target(
            instant(
                f"{COSTLIEST} * {RANK} group_left (stage)"
                f" group by (cluster, peer_group, rank, stage) ({LATE})",
                "rank {{rank}} · {{stage}}",
            )
        )
    )


def _since() -> stat.Panel:
    return (
        stat_panel(
            "Late since",
            "When these ranks became late, by their nodes' clocks. Only known if the ranks "
            "compare their steps.",
            "dateTimeFromNow",
            span=3,
        )
        .thresholds(steps((LATE_COLOUR, None)))
        .no_value("–")
        .with_target(instant(f"{LATE_SINCE} and {RANK} {COSTLIEST}", "rank {{rank}}"))
    )


def _step_time() -> stat.Panel:
    return (
        stat_panel(
            "Step",
            "Mean time from one release to the next, that time divided by the time without the "
            "late ranks, and the time since any rank finished a step. A step takes equally long "
            "on every rank, so the step time shows that a job is slow, but never which rank "
            "causes it.",
            "s",
            span=5,
        )
        .no_value("–")
        .with_target(instant(f"job:rankskew_step_seconds:max{{{JOB}}}", "takes", "A"))
        .with_target(instant(f"job:rankskew_slowdown:max{{{JOB}}}", "as long", "B"))
        .with_target(instant(SINCE_LAST_STEP, "since the last", "C"))
        .override_by_query(
            "B",
            [
                Override(id_val="unit", value="suffix:×"),
                Override(id_val="decimals", value=2),
                *coloured_from(1.01, LATE_COLOUR),
            ],
        )
        .override_by_query("C", coloured_from(60, LATE_COLOUR))
    )


def _judged() -> stat.Panel:
    judged = f"job:rankskew_coverage:ratio{{{JOB}}}"
    job = "on (cluster, job_id)"
    by_source = f"{judged} * {job} group_left (source) {SOURCE} or {job} {judged}"
    return (
        stat_panel(
            "Ranks judged",
            "Share of the job's ranks that can be judged, and the reason if they cannot. By "
            "join: the ranks compare their steps one by one. By block: means over half a minute "
            "or more are compared, which shows little except a rank that is late all the time. "
            "Without either, the absence of alerts does not mean that no rank is late.",
            "percentunit",
            span=3,
        )
        .thresholds(steps(("orange", None), ("green", 1.0)))
        .no_value("None")
        .with_target(
            instant(
                f'label_replace({by_source}, "by", " by $1", "source", "(.+)")',
                "judged{{by}}",
                "A",
            )
        )
        .with_target(
            instant(f"job_reason:rankskew_not_judgeable:bool{{{JOB}}} == 1", "{{reason}}", "B")
        )
        .override_by_query(
            "B",
            [
                fixed("orange"),
                Override(
                    id_val="mappings",
                    value=[{"type": "value", "options": {"1": {"text": "not judgeable"}}}],
                ),
            ],
        )
    )


def _firing() -> stat.Panel:
    name = f'label_replace({FIRING}, "name", "$1", "alertname", "Rankskew(.*)")'
    return (
        stat_panel(
            "Alerts firing",
            "Firing alerts of this job, without their prefix Rankskew. The link above leads to "
            "the runbooks.",
            "none",
            span=3,
        )
        .text_mode(BigValueTextMode.NAME)
        .thresholds(steps((LATE_COLOUR, None)))
        .no_value("None")
        .with_target(instant(f"count by (name) ({name})", "{{name}}"))
    )
