"""The job dashboard's panels that show the run so far: its state, its pace, what changed."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import heatmap, statetimeline, timeseries

from dashboards.job.series import AT_END, HUNG, LATE, LOST, RANK, STATE, wait
from dashboards.job.who import in_state
from dashboards.shared.links import LABEL, to_rank
from dashboards.shared.panels import (
    LATE_COLOUR,
    PEERS_COLOUR,
    STAGE_COLOURS,
    WAIT_COLOUR,
    Override,
    coloured_from,
    drawn,
    fixed,
    line,
    query,
    time_panel,
)
from dashboards.shared.states import GREEN, ORANGE, STATES
from dashboards.shared.timelines import (
    STAGE_VALUES,
    STATE_VALUES,
    coded,
    heatmap_panel,
    timeline_panel,
)
from dashboards.shared.variables import JOB

LANES: Final = 20
# Half of them at each end, so that the panel shows every rank of a job that has no more.
RANKS_OF_HEATMAP: Final = 64
RIGHT: Final = Override(id_val="custom.axisPlacement", value="right")


def state_over_time() -> statetimeline.Panel:
    """Return the state of the job over time, in its colours."""
    return timeline_panel(
        "State over time",
        "The state of the job at each time, in the words and colours of the figure above. It "
        "shows how long an incident lasted, and what came before it.",
        span=24,
        height=3,
        values=STATE_VALUES,
    ).with_target(query(f"max by (cluster, job_id) ({coded(STATE, 'state', STATES)})", "state"))


def late_over_time() -> statetimeline.Panel:
    """Return the stage in which each late rank was late, over time."""
    lately = f"topk({LANES}, max_over_time({LOST}[1h]{AT_END}))"
    stage = f"max by (cluster, peer_group, rank) ({coded(LATE, 'stage', STAGE_COLOURS)})"
    return drawn(
        timeline_panel(
            "Late ranks over time, by stage",
            f"The {LANES} ranks that cost most in the last hour of the range, each in the colour "
            "of the stage in which it was late; empty while it kept up. One long bar is a fault "
            "of a rank, many short ones are a different rank each time.",
            span=12,
            height=10,
            values=STAGE_VALUES,
        ).no_value("No late rank was seen"),
        (f"{stage} and {RANK} {lately}", "rank {{rank}}", [to_rank(LABEL % "rank")]),
    )


def wait_heatmap() -> heatmap.Panel:
    """Return the wait per step of each rank; of the ranks at both ends in a large job."""
    half = RANKS_OF_HEATMAP // 2
    ends = f"(topk({half}, {wait(AT_END)}) or bottomk({half}, {wait(AT_END)}))"
    panel = heatmap_panel(
        "Wait per step, by rank",
        f"Time per step that each rank waits in collectives; in a job of more than "
        f"{RANKS_OF_HEATMAP} ranks, the {half} that wait most and the {half} that wait least. A "
        "pale row among dark ones is the rank that the others wait for.",
        "s",
        span=12,
        scheme="Blues",
    )
    panel.no_value("No wait is measured, or no step was finished")
    return panel.with_target(query(f"{wait()} and {RANK} {ends}", "rank {{rank}}"))


def run_panels() -> Sequence[timeseries.Panel]:
    """Return the panels on the pace of the whole run."""
    return (_efficiency(), _slowdown(), _throughput(), _changes())


def _efficiency() -> timeseries.Panel:
    lost, of_all = f"job:rankskew_gpus_lost:sum{{{JOB}}}", f"job:rankskew_world_size:max{{{JOB}}}"
    return drawn(
        time_panel(
            "Efficiency",
            "Share of the job's GPUs that did not merely wait, over the run: 1 minus GPUs lost "
            "divided by all GPUs. Communication counts as lost; a hang is 0.",
            "percentunit",
            span=6,
        )
        .max(1)
        .no_value("No rank of this job can be judged"),
        (f"1 - {lost} / {of_all}", "efficiency", [fixed(GREEN), *line(2)]),
    )


def _slowdown() -> timeseries.Panel:
    return drawn(
        time_panel(
            "Step time and slowdown",
            "The mean length of a step, and (on the right) that length divided by the length "
            "without the late ranks. While all ranks take longer than they did, the stage that "
            "grew is a line of its own: how many times as long as before it takes.",
            "s",
            span=6,
        ).no_value("No step was finished"),
        (
            f"job:rankskew_step_seconds:max{{{JOB}}} unless {HUNG}",
            "step",
            [fixed(PEERS_COLOUR), *line(2)],
        ),
        (
            f"job:rankskew_slowdown:max{{{JOB}}} unless {HUNG}",
            "slowdown",
            [
                *coloured_from(1.01, LATE_COLOUR),
                *line(2),
                RIGHT,
                Override(id_val="unit", value="suffix:×"),
                Override(id_val="min", value=1),
            ],
        ),
        (
            f"max by (cluster, scope, stage, in_common) (rankskew_job_change_ratio{{{JOB}}})",
            "{{stage}} ({{scope}} {{in_common}})",
            [fixed(ORANGE), *line(2), RIGHT, Override(id_val="unit", value="suffix:×")],
        ),
    )


def _throughput() -> timeseries.Panel:
    def rate(counter: str) -> str:
        return f"sum by (cluster) (rate({counter}{{{JOB}}}[$__rate_interval]))"

    return drawn(
        time_panel(
            "Throughput",
            "Samples and (on the right) tokens that all ranks together train on per second, "
            "padding included. Only known if the training loop reports them.",
            "short",
            span=6,
        ).no_value("The training loop reports neither samples nor tokens"),
        (rate("rankskew_samples_total"), "samples/s", [fixed(GREEN), *line(2)]),
        (rate("rankskew_tokens_total"), "tokens/s", [fixed(WAIT_COLOUR), *line(2), RIGHT]),
    )


def _changes() -> timeseries.Panel:
    late = f"count by (cluster) ({LATE})"
    none = in_state(f"0 * job:rankskew_ranks:sum{{{JOB}}}", "healthy|rotating|straggler|slow_node")
    none = f"sum by (cluster) ({none})"
    drift = f"count by (cluster) (job_runtime:rankskew_ranks:count{{{JOB}}}) - 1"
    restarts = f"resets(job:rankskew_run_seconds:max{{{JOB}}}[$__rate_interval])"
    return drawn(
        time_panel(
            "What changed",
            "Steps in these lines are changes: how many ranks are late or not seen, how many "
            "kinds of ranks there are besides the first (other versions or settings), and "
            "restarts of the job.",
            "none",
            span=6,
        )
        .decimals(0)
        .axis_soft_max(4)
        .no_value("Nothing is known"),
        (f"{late} or {none}", "late ranks", [fixed(LATE_COLOUR), *line(2)]),
        (f"job:rankskew_ranks_missing:sum{{{JOB}}}", "ranks not seen", [fixed(ORANGE), *line(2)]),
        (drift, "other runtimes", [fixed("#B877D9"), *line(2)]),
        (f"{restarts} > 0", "restarts", [fixed(PEERS_COLOUR), *line(3)]),
    )
